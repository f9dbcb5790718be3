"""The ten groups of BaRT (Raff et al., 2019), with the random strength of each transform.

The ranges are those of the paper's appendix, as a public reimplementation gives them for images of
256 pixels, with lengths in proportion to the side; but the windows of the median and the mean are
squares of 3 or 5 pixels. Left out: seam carving, local histogram equalisation, bilateral, wavelet
and non-local means denoising.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mixup_inference.defenses.bart import color_spaces as colors
from mixup_inference.defenses.bart.transforms import (
    equalize,
    mean_filter,
    mix_grey,
    perturb_spectrum,
    stretch,
    swirl,
)
from mixup_inference.defenses.filters import (
    gaussian_blur,
    jpeg,
    median_filter,
    quantize,
    straight_through,
)
from mixup_inference.defenses.total_variation import minimize_total_variation
from mixup_inference.defenses.transforms import crop_resize
from mixup_inference.draws import Draws

#: From images (rows, C, H, W) and one draw for each of them to images, which are then clipped.
Transform = Callable[[Tensor, Draws], Tensor]


def _between(low: float, high: float, x: Tensor, draws: Draws, slot: int) -> Tensor:
    """One uniform number for each row, shape (rows, 1, 1, 1)."""
    return (low + (high - low) * draws.uniform(slot)).to(x)[..., None, None]


def _channels(low: float, high: float, x: Tensor, draws: Draws, slot: int) -> Tensor:
    """Uniform numbers, (rows, C): half of the rows have the same for all channels."""
    u = draws.uniform_block(slot, (x.shape[1] + 1,))[:, 0].to(x)
    return low + (high - low) * torch.where(u[:, :1] < 0.5, u[:, 1:2], u[:, 1:])


def _precision(x: Tensor, draws: Draws) -> Tensor:
    return quantize(x, _channels(8, 201, x, draws, 0).floor()[..., None, None])


def _jpeg(x: Tensor, draws: Draws) -> Tensor:
    return jpeg(x, (55 + draws.integers(0, 41)).flatten().tolist())


def _swirl(x: Tensor, draws: Draws) -> Tensor:
    height, width = x.shape[-2:]
    row, column = _between(0, height - 1, x, draws, 1), _between(0, width - 1, x, draws, 2)
    radius = _between(10 / 256, 200 / 256, x, draws, 3) * height
    return swirl(x, _between(0.01, 2, x, draws, 0), row, column, radius)


def _noise(spread: Callable[[Tensor], Tensor]) -> Transform:
    """Normal noise, whose standard deviation may depend on the pixel."""
    return lambda x, draws: x + spread(x) * draws.normal(0, tuple(x.shape[1:]))[:, 0].to(x)


def _extremes(salt: float, pepper: float) -> Transform:
    """White and black values, in these shares."""

    def replaced(x: Tensor, draws: Draws) -> Tensor:
        u = draws.uniform_block(0, tuple(x.shape[1:]))[:, 0]
        return torch.where(u < salt, 1.0, torch.where(u > 1 - pepper, 0.0, x))

    return replaced


def _spectrum(x: Tensor, draws: Draws) -> Tensor:
    """In half of the channels, a share of the removed frequencies stays, at random."""
    keep = 0.95 * draws.uniform_block(0, (x.shape[1],))[:, 0].to(x)
    some = draws.uniform_block(1, (x.shape[1],))[:, 0] < 0.5
    chance = torch.where(some, keep, 0.0)[..., None, None]
    spared = draws.uniform_block(2, tuple(x.shape[1:]))[:, 0] < chance
    factor = 0.98 + 0.04 * draws.uniform_block(3, (1, *x.shape[-2:]))[:, 0].to(x)
    return perturb_spectrum(x, keep, spared, factor)


def _zoom(x: Tensor, draws: Draws) -> Tensor:
    """Cut off 10 to 50 of 256 pixels on each side."""
    height, width = x.shape[-2:]
    top, bottom, left, right = (
        ((10 + 40 * draws.uniform(slot)) / 256 * side).round().long()
        for slot, side in enumerate((height, height, width, width))
    )
    return crop_resize(x, height - top - bottom, width - left - right, top, left)[:, 0]


def _shift(
    there: Callable[[Tensor], Tensor],
    back: Callable[[Tensor], Tensor],
    sizes: tuple[float, float, float],
    highest: tuple[float, ...],
) -> Transform:
    """Add a number to each channel in another colour space; clip the first ones to [0, highest]."""

    def shifted(x: Tensor, draws: Draws) -> Tensor:
        amounts = [_between(-size, size, x, draws, slot) for slot, size in enumerate(sizes)]
        channels = list((there(x) + torch.cat(amounts, dim=1)).unbind(1))
        for number, most in enumerate(highest):
            channels[number] = channels[number].clamp(0, most)
        return back(torch.stack(channels, dim=1))

    return shifted


def _equalize(x: Tensor, draws: Draws) -> Tensor:
    return equalize(x, 40 + draws.integers(0, 217)[:, 0])


def _stretch(x: Tensor, draws: Draws) -> Tensor:
    """By the quantiles of each channel, or of the whole image."""
    low, high = _channels(0.01, 0.04, x, draws, 0), _channels(0.96, 0.99, x, draws, 1)
    whole = stretch(x, low[:, :1], high[:, :1])
    return torch.where(_between(0, 1, x, draws, 2) < 0.5, whole, stretch(x, low, high))


def _grey(weigh: Callable[[Tensor, Tensor], Tensor], *, leave_out: bool) -> Transform:
    """Mix with a random grey, of all channels or of those other than the chosen one.

    ``weigh`` gives the weight of grey in each channel, from uniform numbers and the choice.
    """

    def mixed(x: Tensor, draws: Draws) -> Tensor:
        chosen = torch.arange(3, device=x.device) == draws.integers(0, 3)
        ratios = draws.uniform_block(1, (3,))[:, 0].to(x)
        if leave_out:
            ratios = torch.where(chosen, 0.0, ratios)
        weight = weigh(draws.uniform_block(2, (3,))[:, 0].to(x), chosen)
        return mix_grey(x, ratios / ratios.sum(1, keepdim=True), weight.to(x))

    return mixed


def _blur(x: Tensor, draws: Draws) -> Tensor:
    return gaussian_blur(x, _channels(0.1, 2, x, draws, 0))


def _total_variation(x: Tensor, draws: Draws) -> Tensor:
    with torch.no_grad():
        weight = _between(0.05, 0.3, x, draws, 0)
        smooth = minimize_total_variation(x, weight=weight, steps=20)
    return straight_through(smooth, x)


#: Members by their names, which are part of the names of their random streams.
GROUPS: Mapping[str, Mapping[str, Transform]] = {
    "precision": {"precision": _precision},
    "jpeg": {"jpeg": _jpeg},
    "swirl": {"swirl": _swirl},
    "noise": {
        "gaussian": _noise(lambda x: torch.full_like(x, 0.1)),
        "poisson": _noise(lambda x: (x / 256).clamp(min=1e-8).sqrt()),  # for 256 photons, nearly
        "speckle": _noise(lambda x: 0.1 * x),
        "salt": _extremes(0.05, 0),
        "pepper": _extremes(0, 0.05),
        "salt and pepper": _extremes(0.025, 0.025),
    },
    "spectrum": {"spectrum": _spectrum},
    "zoom": {"zoom": _zoom},
    "color": {
        "hsv": _shift(colors.rgb_to_hsv, colors.hsv_to_rgb, (0.05, 0.25, 0.25), (1, 1, 1)),
        "xyz": _shift(colors.rgb_to_xyz, colors.xyz_to_rgb, (0.05, 0.05, 0.05), (1, 1, 1)),
        "lab": _shift(colors.rgb_to_lab, colors.lab_to_rgb, (5, 2, 2), (100,)),
        "yuv": _shift(colors.rgb_to_yuv, colors.yuv_to_rgb, (0.05, 0.02, 0.02), (1,)),
    },
    "contrast": {"equalize": _equalize, "stretch": _stretch},
    "grey": {
        "grey": _grey(lambda u, _: torch.ones_like(u), leave_out=False),
        "partly grey": _grey(lambda u, _: 1 - u.clamp(min=0.2), leave_out=False),
        "two channels": _grey(lambda _, chosen: ~chosen, leave_out=True),
        "one channel": _grey(lambda u, chosen: (0.1 + 0.8 * u) * chosen, leave_out=True),
    },
    "denoise": {
        "blur": _blur,
        "median 3": lambda x, _: median_filter(x, 3),
        "median 5": lambda x, _: median_filter(x, 5),
        "mean 3": lambda x, _: mean_filter(x, 3),
        "mean 5": lambda x, _: mean_filter(x, 5),
        "total variation": _total_variation,
    },
}
COLOR_ONLY = ("color", "grey")  # groups that take three channels
