"""Gaussian noise on the input (Tabacof and Valle, 2016), a baseline of Tables 2 and 3."""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor, nn

from mixup_inference.defenses.base import Options, RandomizedInference
from mixup_inference.defenses.transforms import (
    Size,
    check_size,
    crop_pad,
    crop_resize,
    resize_pad,
    rotate,
    window_sizes,
)
from mixup_inference.draws import Draws, scale_bits
from mixup_inference.errors import unknown_name
from mixup_inference.validation import check_number


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


_SIZE, _OUT_Y, _OUT_X, _IN_Y, _IN_X = range(5)  # slots of one draw of ResizePad


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


_Y, _X = 1, 2  # slots of one draw of CropResize, beside _SIZE


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
