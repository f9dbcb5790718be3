"""The baselines of Tables 2 and 3: noise, rotation, and two ways to crop and resize."""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor, nn

from mixup_inference.defenses import transforms
from mixup_inference.defenses.base import Defense, Options
from mixup_inference.draws import Draws
from mixup_inference.validation import check_choice, check_number

_SIZE = 0  # the slot of a window's size; those of its places follow


class GaussianNoise(Defense):
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

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """X plus noise."""
        noisy = x[:, None] + self.sigma * numbers.normal(0, tuple(x.shape[1:])).to(x.dtype)
        return noisy.clamp(0, 1) if self.clip else noisy


class RandomRotation(Defense):
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
        self.mode = check_choice(mode, what="mode", known=("bilinear", "nearest"))

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """x, rotated."""
        return transforms.rotate(x, self.degrees * (2 * numbers.uniform(0) - 1), mode=self.mode)


class ResizePad(Defense):
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
        size: transforms.Size = (0.5, 0.75),
        variant: Literal["resize", "crop"] = "resize",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        self.size = transforms.check_size(size)
        self.variant = check_choice(variant, what="variant", known=("resize", "crop"))

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """x, smaller and somewhere on black."""
        window = transforms.window_sizes(x, self.size, numbers.uniform(_SIZE))
        to = _corner(x, window, numbers, 1)
        if self.variant == "resize":
            return transforms.resize_pad(x, *window, *to)
        return transforms.crop_pad(x, *window, *to, *_corner(x, window, numbers, 3))


class CropResize(Defense):
    """Cut out a random window and resize it bilinearly to the whole picture.

    ``size`` is (low, high), both included: whole numbers are pixels, fractions are of the side.
    """

    def __init__(
        self, model: nn.Module, *, size: transforms.Size = (0.7, 0.95), **options: Unpack[Options]
    ) -> None:
        super().__init__(model, **options)
        self.size = transforms.check_size(size)

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """A window of x, enlarged."""
        window = transforms.window_sizes(x, self.size, numbers.uniform(_SIZE))
        return transforms.crop_resize(x, *window, *_corner(x, window, numbers, 1))


def _corner(
    x: Tensor, window: tuple[Tensor, Tensor], numbers: Draws, slot: int
) -> tuple[Tensor, Tensor]:
    """The top and left of a random place for each window, from two slots."""
    tall, wide = window
    top = numbers.integers(slot, x.shape[-2] - tall + 1)
    return top, numbers.integers(slot + 1, x.shape[-1] - wide + 1)
