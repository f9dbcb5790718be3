"""Squeezers of images (Xu, Evans and Qi, 2018): bit depth, median filter, non-local means.

All pass gradients: through rounding as if it were not there (Athalye et al., 2018), through the
median to the pixel that it picks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def reduce_bit_depth(x: Tensor, bits: int) -> Tensor:
    """Round pixels to 2^bits levels: rint(x (2^bits - 1)) / (2^bits - 1).

    >>> reduce_bit_depth(torch.tensor([0.1, 0.3, 0.6, 0.9]), 2).mul(3).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    levels = 2**bits - 1
    rounded: Tensor = (x.detach() * levels).round() / levels
    return rounded + (x - x.detach())


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


def squeezed(x: Tensor) -> Tensor:
    """Each image squeezed in several ways, shape (images, ways, C, H, W).

    The best joint detectors of Xu et al., as their EvadeML-Zoo has them: with one channel 1 bit
    and a 2x2 median (their MNIST); in colour 5 bits, a 2x2 median, and non-local means 13-3-2
    (their CIFAR-10), which they take from OpenCV, in CIELAB; here it is computed in RGB.
    """
    if x.shape[1] == 1:
        return torch.stack([reduce_bit_depth(x, 1), median_filter(x)], dim=1)
    ways = [reduce_bit_depth(x, 5), median_filter(x), non_local_means(x)]
    return torch.stack(ways, dim=1)


def _mirrored(x: Tensor, before: int, after: int) -> Tensor:
    """Pad both sides with mirror images, as often as it takes: c b a | a b c | c b a."""
    for dim in (2, 3):
        count = x.shape[dim]
        place = torch.arange(-before, count + after, device=x.device) % (2 * count)
        x = x.index_select(dim, torch.where(place < count, place, 2 * count - 1 - place))
    return x
