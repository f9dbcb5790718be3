"""Random resizing and padding (Xie et al., 2018), a baseline of Tables 2 and 3."""

from __future__ import annotations

from typing import Literal, Unpack

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
from mixup_inference.errors import unknown_name

_SIZE, _OUT_Y, _OUT_X, _IN_Y, _IN_X = range(5)  # slots of one draw


class ResizePad(RandomizedInference):
    """Shrink the picture to a random size and put it at a random place on black.

    ``variant="resize"`` is the method of Xie et al.: the whole picture, resized bilinearly.
    ``variant="crop"`` is what the published code of the paper does under their name: a random
    window of that size is cut out and put on black, without any resizing.

    ``size`` is (low, high), both included: whole numbers are pixels, fractions are of the side.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        size: Size = (0.5, 0.75),
        variant: Literal["resize", "crop"] = "resize",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        if variant not in ("resize", "crop"):
            raise unknown_name("variant", variant, ["resize", "crop"])
        self.size = check_size(size)
        self.variant = variant

    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:  # noqa: ARG002
        height, width = x.shape[-2:]
        tall, wide = window_sizes(x, self.size, draws.uniform(_SIZE))
        top = scale_bits(draws.bits(_OUT_Y), height - tall + 1)
        left = scale_bits(draws.bits(_OUT_X), width - wide + 1)
        if self.variant == "resize":
            return resize_pad(x, tall, wide, top, left)
        from_top = scale_bits(draws.bits(_IN_Y), height - tall + 1)
        from_left = scale_bits(draws.bits(_IN_X), width - wide + 1)
        return crop_pad(x, tall, wide, top, left, from_top, from_left)

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        return f"size={self.size}, variant={self.variant!r}, draws={self.draws}, seed={self.seed}"


def _inside(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """1 where the output shows the picture, 0 where it is black; (samples, draws, 1, H, W)."""
    i, j = pixel_axes(x)
    i, j = i - placed(top), j - placed(left)
    shown = (i >= 0) & (i < placed(tall)) & (j >= 0) & (j < placed(wide))
    return shown.to(x.dtype)[:, :, None]


def resize_pad(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Resize each picture to tall x wide and put it at (top, left); all (samples, draws)."""
    i, j = pixel_axes(x)
    rows = (i - placed(top) + 0.5) * (x.shape[-2] / placed(tall)) - 0.5
    columns = (j - placed(left) + 0.5) * (x.shape[-1] / placed(wide)) - 0.5
    return sample_at(x, rows, columns) * _inside(x, tall, wide, top, left)


def crop_pad(
    x: Tensor,
    tall: Tensor,
    wide: Tensor,
    top: Tensor,
    left: Tensor,
    from_top: Tensor,
    from_left: Tensor,
) -> Tensor:
    """Move the tall x wide window at (from_top, from_left) to (top, left); black elsewhere."""
    i, j = pixel_axes(x)
    rows, columns = i + placed(from_top - top), j + placed(from_left - left)
    return sample_at(x, rows, columns, mode="nearest") * _inside(x, tall, wide, top, left)
