"""Random rotation of the input (Tabacof and Valle, 2016), a baseline of Tables 2 and 3."""

from __future__ import annotations

import math
from typing import Literal, Unpack

from torch import Tensor, nn

from mixup_inference.checks import check_number
from mixup_inference.defenses.base import Options, RandomizedInference
from mixup_inference.defenses.sampling import pixel_axes, placed, sample_at
from mixup_inference.draws import Draws
from mixup_inference.errors import unknown_name


class RandomRotation(RandomizedInference):
    """Rotate about the centre by an angle uniform on [-degrees, degrees]; corners are black.

    ``mode="nearest"`` is what the published code used; "bilinear" is smooth and the default.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        degrees: float = 40.0,
        mode: Literal["bilinear", "nearest"] = "bilinear",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        self.degrees = check_number(degrees, what="degrees", least=0, most=180)
        if mode not in ("bilinear", "nearest"):
            raise unknown_name("mode", mode, ["bilinear", "nearest"])
        self.mode = mode

    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:  # noqa: ARG002
        angle = self.degrees * (2 * draws.uniform(0) - 1)
        return rotate(x, angle, mode=self.mode)

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        return f"degrees={self.degrees}, draws={self.draws}, seed={self.seed}"


def rotate(x: Tensor, degrees: Tensor, *, mode: str = "bilinear") -> Tensor:
    """Rotate counter-clockwise; ``degrees`` has shape (samples, draws)."""
    rows, columns = pixel_axes(x)
    middle_y, middle_x = (x.shape[-2] - 1) / 2, (x.shape[-1] - 1) / 2
    dy, dx = rows - middle_y, columns - middle_x
    angle = placed(degrees * (math.pi / 180)).to(rows.dtype)
    cos, sin = angle.cos(), angle.sin()
    return sample_at(
        x,
        sin * dx + cos * dy + middle_y,
        cos * dx - sin * dy + middle_x,
        mode=mode,
        outside="zeros",
    )
