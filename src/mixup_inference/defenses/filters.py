"""Functions of images that several defences share: rounding, JPEG, blur.

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
