"""The baselines as the paper's published code computes them, not as their authors describe them.

That code rotates, crops and resizes 8-bit pictures, which cuts off the fraction of a grey level,
and its pixels are in [-1, 1]. Its rotation takes the nearest pixel, and its "Xie et al." crops and
pads without resizing.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from mixup_inference.defenses.base import Options
from mixup_inference.defenses.baselines import CropResize, GaussianNoise, RandomRotation, ResizePad
from mixup_inference.defenses.filters import quantize, straight_through
from mixup_inference.defenses.transforms import Size
from mixup_inference.draws import Draws


def cut_to_8_bits(x: Tensor) -> Tensor:
    """Cut pixels off to 8 bits, by way of [-1, 1] in float32; straight-through.

    On that way 63 of the 256 grey levels come out below themselves, so they fall by one.

    >>> import torch
    >>> levels = torch.arange(256) / 255
    >>> int((cut_to_8_bits(levels) < levels).sum())
    63
    """
    scaled = (x.detach().float() - 0.5) / 0.5  # as the published code hands it to its model
    levels = ((scaled * 0.5 + 0.5) * 255).floor().clamp(0, 255)
    return straight_through((levels / 255).to(x.dtype), x)


def published_noise(
    model: nn.Module, *, sigma: float = 0.04, **options: Unpack[Options]
) -> GaussianNoise:
    """Gaussian noise, with ``sigma`` for pixels in [-1, 1], as in the paper's Tables 4 and 5."""
    return GaussianNoise(model, sigma=sigma / 2, **options)


class PublishedRotation(RandomRotation):
    """Rotate 8-bit pictures; each pixel takes the value of the nearest one."""

    surrogate_gradient = True

    def __init__(
        self, model: nn.Module, *, degrees: float = 40.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(model, degrees=degrees, mode="nearest", **options)

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """The picture in 8 bits, rotated."""
        return super().transform(cut_to_8_bits(x), None, numbers)


class PublishedResizePad(ResizePad):
    """Cut a random window out of an 8-bit picture and put it at a random place on black."""

    surrogate_gradient = True

    def __init__(
        self, model: nn.Module, *, size: Size = (0.5, 0.75), **options: Unpack[Options]
    ) -> None:
        super().__init__(model, size=size, variant="crop", **options)

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """A window of x in 8 bits, somewhere on black."""
        return super().transform(cut_to_8_bits(x), None, numbers)


class PublishedCropResize(CropResize):
    """Cut a random window out of an 8-bit picture and resize it bilinearly, in 8 bits."""

    surrogate_gradient = True

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """A window of x, enlarged, both in 8 bits."""
        return quantize(super().transform(cut_to_8_bits(x), None, numbers), 255)
