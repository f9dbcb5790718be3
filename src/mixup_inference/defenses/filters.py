"""Functions of images that several defences share: rounding, JPEG, blur, median, non-local means.

Where a function has no useful gradient, the backward pass takes that of the identity instead: BPDA
with a straight-through estimate (Athalye et al., 2018).
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from mixup_inference.errors import InputError


def straight_through(y: Tensor, x: Tensor) -> Tensor:
    """Exactly ``y``, with the gradient of ``x``."""
    return y.detach() + (x - x.detach())


def quantize(x: Tensor, steps: Tensor | int) -> Tensor:
    """Round to multiples of 1 / steps; straight-through.

    >>> quantize(torch.tensor([0.2, 0.4, 1.0]), 2)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return straight_through(torch.round(x * steps) / steps, x)


def jpeg(x: Tensor, quality: Sequence[int]) -> Tensor:
    """Round to 8 bits, compress and decompress with Pillow; straight-through.

    Args:
        x: (rows, C, H, W) with one channel (grey) or three (RGB).
        quality: of each row, 1 to 95.
    """
    if x.shape[1] not in (1, 3):
        raise InputError(f"JPEG takes images of 1 or 3 channels; saw {x.shape[1]}.")
    stored = (x.detach() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    decoded = []
    for image, q in zip(stored.permute(0, 2, 3, 1).numpy(), quality, strict=True):
        file = io.BytesIO()
        Image.fromarray(image.squeeze(2) if x.shape[1] == 1 else image).save(
            file, format="JPEG", quality=int(q)
        )
        decoded.append(np.asarray(Image.open(file)).reshape(image.shape))
    out = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2)
    return straight_through(out.to(x) / 255, x)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Convolve with a Gaussian that is cut off at 4 sigma; the edge goes on outside.

    Args:
        x: (rows, C, H, W).
        sigma: in pixels, broadcastable to (rows, C).
    """
    rows, channels, height, width = x.shape
    sigma = sigma.to(x).expand(rows, channels).reshape(-1, 1).clamp(min=1e-3)
    reach = (4 * sigma + 0.5).floor()
    radius = int(reach.max())
    taps = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    line = torch.exp(-0.5 * (taps / sigma) ** 2) * (taps.abs() <= reach)
    line = (line / line.sum(1, keepdim=True))[:, None, None]
    flat = functional.pad(
        x.reshape(1, rows * channels, height, width), 4 * (radius,), mode="replicate"
    )
    flat = functional.conv2d(flat, line, groups=rows * channels)
    flat = functional.conv2d(flat, line.transpose(2, 3), groups=rows * channels)
    return flat.view_as(x)


def median_filter(x: Tensor, size: int = 2) -> Tensor:
    """The median of the size x size pixels around each, beyond the edges mirrored.

    An even window lies towards the upper left, and of its two middle values takes the larger:
    ``scipy.ndimage.median_filter``.
    """
    padded = _mirrored(x, size // 2, (size - 1) // 2)
    windows = padded.unfold(2, size, 1).unfold(3, size, 1).flatten(4)
    return windows.sort(dim=4).values[..., size * size // 2]


def non_local_means(
    x: Tensor, search: int = 13, patch: int = 3, strength: float = 2 / 255
) -> Tensor:
    """Average each pixel with those whose surroundings look alike (Buades, Coll and Morel, 2005).

    The weight of a pixel within the search x search window is exp(-d^2 / strength^2), where d^2 is
    the mean squared difference of the patch x patch pixels around both, over all channels.
    """
    far, near = search // 2, patch // 2
    height, width = x.shape[2:]
    padded = _mirrored(x, far + near, far + near)
    around = padded[..., far : far + height + 2 * near, far : far + width + 2 * near]
    total, weights = torch.zeros_like(x), torch.zeros_like(x[:, :1])
    for down in range(2 * far + 1):
        for right in range(2 * far + 1):
            rows, columns = slice(down, None), slice(right, None)
            other = padded[..., rows, columns][..., : height + 2 * near, : width + 2 * near]
            square = (around - other).square().mean(1, keepdim=True)
            weight = (-functional.avg_pool2d(square, patch, stride=1) / strength**2).exp()
            total = total + weight * other[..., near : near + height, near : near + width]
            weights = weights + weight
    return total / weights


def _mirrored(x: Tensor, before: int, after: int) -> Tensor:
    """Pad both sides with mirror images, as often as it takes: c b a | a b c | c b a."""
    for dim in (2, 3):
        count = x.shape[dim]
        place = torch.arange(-before, count + after, device=x.device) % (2 * count)
        x = x.index_select(dim, torch.where(place < count, place, 2 * count - 1 - place))
    return x
