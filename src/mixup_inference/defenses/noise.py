"""Gaussian noise on the input (Tabacof and Valle, 2016), a baseline of Tables 2 and 3."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from mixup_inference.checks import check_number
from mixup_inference.defenses.base import Options, RandomizedInference
from mixup_inference.draws import Draws


class GaussianNoise(RandomizedInference):
    """Add independent normal noise to every pixel.

    ``sigma`` is in our scale, pixels in [0, 1]. The paper's numbers are for pixels in [-1, 1]:
    halve them. Like the published code, the noisy image is not clipped unless ``clip``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sigma: float = 0.02,
        clip: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        self.sigma = check_number(sigma, what="sigma", least=0)
        self.clip = bool(clip)

    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:  # noqa: ARG002
        noisy = x[:, None] + self.sigma * draws.normal(0, tuple(x.shape[1:])).to(x.dtype)
        return noisy.clamp(0, 1) if self.clip else noisy

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        return f"sigma={self.sigma}, draws={self.draws}, seed={self.seed}"
