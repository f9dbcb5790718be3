"""The transforms of BaRT as functions of images (rows, C, H, W) and of each row's parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from mixup_inference.defenses.transforms import pixel_axes, sample_at


def swirl(x: Tensor, strength: Tensor, row: Tensor, column: Tensor, radius: Tensor) -> Tensor:
    """Rotate each pixel about a point, by an angle that falls off with its distance from it.

    The angle is strength exp(-5 distance / (radius log 2)), in radians. All parameters have shape
    (rows, 1, 1, 1).
    """
    rows, columns = pixel_axes(x)
    down, right = rows - row, columns - column
    angle = strength * torch.exp(-torch.hypot(down, right) * (5 / math.log(2)) / radius)
    cos, sin = angle.cos(), angle.sin()
    return sample_at(x, row + sin * right + cos * down, column + cos * right - sin * down)[:, 0]


def perturb_spectrum(x: Tensor, keep: Tensor, spared: Tensor, factor: Tensor) -> Tensor:
    """Remove high frequencies, and multiply the others by a factor.

    Args:
        x: the images.
        keep: (rows, C). Of n rows (columns) of the spectrum, those from n keep to n (1 - keep) are
            removed; never the mean.
        spared: (rows, C, H, W), true for coefficients that stay nevertheless.
        factor: of each coefficient, broadcastable to the images.
    """
    removed = torch.zeros_like(spared)
    for axis, size in zip(pixel_axes(x), x.shape[-2:], strict=True):
        first = (size * keep).floor().clamp(min=1)[..., None, None]
        last = (size * (1 - keep)).floor()[..., None, None]
        removed = removed | ((axis >= first) & (axis < last))
    spectrum = torch.fft.fft2(x) * (factor * ~(removed & ~spared))
    image: Tensor = torch.fft.ifft2(spectrum).real
    return image


def mix_grey(x: Tensor, shares: Tensor, weight: Tensor) -> Tensor:
    """Move each channel towards grey, the mean of the channels with these shares.

    Args:
        x: the images.
        shares: (rows, C); they sum to 1.
        weight: (rows, C), of grey in each channel.
    """
    grey = (shares[..., None, None] * x).sum(1, keepdim=True)
    return x + weight[..., None, None] * (grey - x)


def equalize(x: Tensor, bins: Tensor) -> Tensor:
    """Map each channel to its cumulative histogram, linear between the centres of the bins.

    ``bins`` (rows,) lie between the channel's least and largest value. The histogram counts as a
    constant for the gradient.
    """
    flat, most = x.flatten(2), int(bins.max())
    count = bins.to(x)[:, None, None]
    low, high = flat.detach().aminmax(dim=2, keepdim=True)
    place = (flat - low) / torch.where(high > low, high - low, 1.0) * count
    number = torch.minimum(place.detach().floor(), count - 1).long()
    histogram = torch.zeros(*flat.shape[:2], most, dtype=x.dtype, device=x.device)
    histogram.scatter_add_(2, number, torch.ones_like(flat))
    share = histogram.cumsum(2) / flat.shape[2]
    between = (place - 0.5).clamp(min=0).minimum(count - 1)
    left = between.detach().floor()
    right = torch.minimum(left + 1, count - 1)
    below, above = (share.gather(2, end.long()) for end in (left, right))
    out = torch.lerp(below, above, between - left)
    return torch.where(high > low, out, flat).view_as(x)


def stretch(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map the values at two quantiles to 0 and 1, linearly; clip.

    ``low`` and ``high`` are (rows, C), or (rows, 1) for quantiles of all channels together.
    """
    flat = x.flatten(1)[:, None] if low.shape[1] == 1 else x.flatten(2)
    values = flat.sort(dim=2).values
    ends = []
    for share in (low, high):
        place = share.to(x)[..., None] * (flat.shape[2] - 1)
        below, above = (values.gather(2, end.long()) for end in (place.floor(), place.ceil()))
        ends.append(torch.lerp(below, above, place - place.floor())[..., None])
    span = ends[1] - ends[0]
    stretched = ((x - ends[0]) / torch.where(span > 1e-3, span, 1.0)).clamp(0, 1)
    return torch.where(span > 1e-3, stretched, x)


def mean_filter(x: Tensor, size: int) -> Tensor:
    """The mean over a window of size x size pixels; the edge goes on outside."""
    padded = functional.pad(x, 4 * (size // 2,), mode="replicate")
    return functional.avg_pool2d(padded, size, stride=1)
