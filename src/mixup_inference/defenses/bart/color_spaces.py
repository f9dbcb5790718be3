"""RGB images in other colour spaces, and back; differentiable. Channels are the second dimension.

sRGB with the reference white D65, as in scikit-image and kornia.
"""

from __future__ import annotations

import torch
from torch import Tensor

_XYZ = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
_YUV = (
    (0.299, 0.587, 0.114),
    (-0.14714119, -0.28886916, 0.43601035),
    (0.61497538, -0.51496512, -0.10001026),
)
_WHITE = (0.95047, 1.0, 1.08883)


def rgb_to_hsv(x: Tensor) -> Tensor:
    """Hue (as a share of the circle), saturation and value."""
    value, largest = x.max(1)
    spread = value - x.min(1).values
    red, green, blue = x.unbind(1)
    safe = torch.where(spread > 0, spread, 1.0)
    sixths = torch.stack(
        [(green - blue) / safe % 6, (blue - red) / safe + 2, (red - green) / safe + 4]
    )
    hue = sixths.gather(0, largest[None])[0] / 6
    return torch.stack([hue, spread / torch.where(value > 0, value, 1.0), value], dim=1)


def hsv_to_rgb(x: Tensor) -> Tensor:
    """The inverse of ``rgb_to_hsv``."""
    hue, saturation, value = x.unbind(1)
    channels = []
    for offset in (5, 3, 1):
        k = (offset + 6 * hue) % 6
        channels.append(value * (1 - saturation * torch.minimum(k, 4 - k).clamp(0, 1)))
    return torch.stack(channels, dim=1)


def rgb_to_xyz(x: Tensor) -> Tensor:
    """CIE 1931 XYZ."""
    linear = torch.where(x > 0.04045, ((x.clamp(min=0.04) + 0.055) / 1.055) ** 2.4, x / 12.92)
    return _times(_XYZ, linear)


def xyz_to_rgb(x: Tensor) -> Tensor:
    """The inverse of ``rgb_to_xyz``."""
    linear = _times(_XYZ, x, inverse=True)
    power = 1.055 * linear.clamp(min=0.003) ** (1 / 2.4) - 0.055
    return torch.where(linear > 0.0031308, power, 12.92 * linear)


def rgb_to_lab(x: Tensor) -> Tensor:
    """CIELAB: L in [0, 100], a and b about 0."""
    t = rgb_to_xyz(x) / _column(_WHITE, x)
    x_, y, z = torch.where(
        t > 0.008856, t.clamp(min=0.008) ** (1 / 3), 7.787 * t + 16 / 116
    ).unbind(1)
    return torch.stack([116 * y - 16, 500 * (x_ - y), 200 * (y - z)], dim=1)


def lab_to_rgb(x: Tensor) -> Tensor:
    """The inverse of ``rgb_to_lab``."""
    lightness, a, b = x.unbind(1)
    y = (lightness + 16) / 116
    t = torch.stack([y + a / 500, y, (y - b / 200).clamp(min=0)], dim=1)
    return xyz_to_rgb(torch.where(t > 0.2068966, t**3, (t - 16 / 116) / 7.787) * _column(_WHITE, x))


def rgb_to_yuv(x: Tensor) -> Tensor:
    """Luma and two chroma channels about 0."""
    return _times(_YUV, x)


def yuv_to_rgb(x: Tensor) -> Tensor:
    """The inverse of ``rgb_to_yuv``."""
    return _times(_YUV, x, inverse=True)


def _times(matrix: tuple[tuple[float, ...], ...], x: Tensor, *, inverse: bool = False) -> Tensor:
    """The matrix times the channels of every pixel."""
    square = torch.tensor(matrix, dtype=torch.float64)
    square = (square.inverse() if inverse else square).to(x)
    return torch.einsum("ij,rjhw->rihw", square, x)


def _column(numbers: tuple[float, ...], x: Tensor) -> Tensor:
    return torch.tensor(numbers).to(x).view(1, -1, 1, 1)
