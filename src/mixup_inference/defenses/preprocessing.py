"""Defences that change the input in one fixed way: compression, rounding, and two low-pass filters.

Nothing about them is random, so F is called once. Blur and resize are controls: what any low-pass
filter does to examples that were made for the bare model.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.defenses.base import Defense, Options
from mixup_inference.defenses.filters import gaussian_blur, jpeg, quantize
from mixup_inference.draws import Draws
from mixup_inference.validation import check_int, check_number

#: Pixels; a wider Gaussian leaves nothing of an image, and takes memory with its square.
LARGEST_BLUR = 100


class Preprocessing(Defense):
    """F(g(x)) for a fixed function g, ``preprocess``.

    All draws would be the same, so one is made, whatever ``draws`` and ``fresh`` say.
    """

    def __init__(self, model: nn.Module, **options: Unpack[Options]) -> None:
        super().__init__(model, **options)
        self.fresh = False

    def preprocess(self, x: Tensor) -> Tensor:
        """g(x), of the same shape."""
        raise NotImplementedError

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:  # noqa: ARG002
        """g(x), as the only draw."""
        return self.preprocess(x)[:, None]

    def numbers(
        self,
        x: Tensor,
        index: Tensor | None = None,
        stream: str | int = 0,
        draws: int | None = None,  # noqa: ARG002
    ) -> Draws:
        """One draw, of which no number is used."""
        return super().numbers(x, index, stream, draws=1)


class JpegCompression(Preprocessing):
    """Compress as JPEG (Guo et al., 2018; Das et al., 2018), with Pillow.

    ``quality`` is Pillow's, 1 to 95; Guo et al. use 75. The gradient is that of the identity.
    """

    surrogate_gradient = True

    def __init__(self, model: nn.Module, *, quality: int = 75, **options: Unpack[Options]) -> None:
        super().__init__(model, **options)
        check_number(quality, what="quality", least=1, most=95)
        self.quality = check_int(quality, what="quality", least=1)

    def preprocess(self, x: Tensor) -> Tensor:
        """x, compressed and decompressed."""
        return jpeg(x, [self.quality] * len(x))


class BitDepthReduction(Preprocessing):
    """Round to b bits: round(x (2^b - 1)) / (2^b - 1) (Xu et al., 2018; Guo et al., 2018: 3 bits).

    The gradient is that of the identity.
    """

    surrogate_gradient = True

    def __init__(self, model: nn.Module, *, bits: int = 3, **options: Unpack[Options]) -> None:
        super().__init__(model, **options)
        check_number(bits, what="bits", least=1, most=16)
        self.bits = check_int(bits, what="bits", least=1)

    def preprocess(self, x: Tensor) -> Tensor:
        """x, rounded."""
        return quantize(x, 2**self.bits - 1)


class GaussianBlur(Preprocessing):
    """Convolve with a Gaussian of ``sigma`` pixels."""

    def __init__(self, model: nn.Module, *, sigma: float = 0.6, **options: Unpack[Options]) -> None:
        super().__init__(model, **options)
        self.sigma = check_number(sigma, what="sigma", least=0, most=LARGEST_BLUR)

    def preprocess(self, x: Tensor) -> Tensor:
        """x, blurred."""
        return gaussian_blur(x, torch.tensor(self.sigma))


class Resize(Preprocessing):
    """Shrink to ``size``, a fraction of the side, and enlarge again, both bilinearly.

    As in Pillow, shrinking takes the mean over all pixels that an output pixel covers.
    """

    def __init__(self, model: nn.Module, *, size: float = 0.75, **options: Unpack[Options]) -> None:
        super().__init__(model, **options)
        self.size = check_number(size, what="size", least=0, most=1)

    def preprocess(self, x: Tensor) -> Tensor:
        """x, shrunk and enlarged."""
        small = [max(1, round(self.size * side)) for side in x.shape[-2:]]
        shrunk = functional.interpolate(x, small, mode="bilinear", antialias=True)
        return functional.interpolate(shrunk, x.shape[-2:], mode="bilinear")
