"""Random cropping and resizing (Guo et al., 2018), a baseline of Tables 2 and 3."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from mixup_inference.defenses.base import Options, RandomizedInference
from mixup_inference.defenses.sampling import (
    Size,
    check_size,
    pixel_axes,
    placed,
    sample_at,
    window_sizes,
)
from mixup_inference.draws import Draws, scale_bits

_SIZE, _Y, _X = range(3)  # slots of one draw


class CropResize(RandomizedInference):
    """Cut out a random window and resize it bilinearly to the whole picture.

    ``size`` is (low, high), both included: whole numbers are pixels, fractions are of the side.
    """

    def __init__(
        self, model: nn.Module, *, size: Size = (0.7, 0.95), **options: Unpack[Options]
    ) -> None:
        super().__init__(model, **options)
        self.size = check_size(size)

    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:  # noqa: ARG002
        height, width = x.shape[-2:]
        tall, wide = window_sizes(x, self.size, draws.uniform(_SIZE))
        top = scale_bits(draws.bits(_Y), height - tall + 1)
        left = scale_bits(draws.bits(_X), width - wide + 1)
        return crop_resize(x, tall, wide, top, left)

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        return f"size={self.size}, draws={self.draws}, seed={self.seed}"


def crop_resize(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Resize the tall x wide window at (top, left) to the whole picture; all (samples, draws)."""
    i, j = pixel_axes(x)
    top, left, tall, wide = placed(top), placed(left), placed(tall), placed(wide)
    rows = (i + 0.5) * (tall / x.shape[-2]) - 0.5  # inside the window, whose edge goes on
    columns = (j + 0.5) * (wide / x.shape[-1]) - 0.5
    return sample_at(
        x, top + rows.clamp(min=0).minimum(tall - 1), left + columns.clamp(min=0).minimum(wide - 1)
    )
