"""Reading images at other places: what rotation, padding and cropping have in common.

For every output pixel we compute where in the input it comes from, per sample and draw, and
read there with one bilinear sampling. That is differentiable and has no loop over samples.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.nn import functional

from mixup_inference.errors import InputError

Size = tuple[int, int] | tuple[float, float]


def sample_at(
    x: Tensor, rows: Tensor, columns: Tensor, *, mode: str = "bilinear", outside: str = "border"
) -> Tensor:
    """Read images at fractional pixel positions.

    Args:
        x: (samples, C, H, W).
        rows: vertical positions, broadcastable to (samples, draws, H', W'); 0 is the centre of
            the first row of pixels.
        columns: horizontal positions, likewise.
        mode: "bilinear" or "nearest".
        outside: what lies beyond the picture: "border" (its edge goes on) or "zeros" (black).

    Returns:
        (samples, draws, C, H', W').
    """
    height, width = x.shape[-2:]
    rows, columns = torch.broadcast_tensors(rows, columns)
    grid = torch.stack(((2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1), dim=-1)
    out = functional.grid_sample(
        x.to(rows.dtype),
        grid.flatten(1, 2),  # a sample's draws, stacked into one tall picture
        mode=mode,
        padding_mode=outside,
        align_corners=False,
    )
    draws: Tensor = out.to(x.dtype).unflatten(2, rows.shape[1:3])
    return draws.transpose(1, 2)


def pixel_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The output's row numbers as a column and its column numbers as a row.

    In float32 at least: half precision cannot tell neighbouring pixels of a large image apart.
    """
    height, width = x.shape[-2:]
    kind = torch.promote_types(x.dtype, torch.float32)
    rows = torch.arange(height, device=x.device, dtype=kind)
    columns = torch.arange(width, device=x.device, dtype=kind)
    return rows[:, None], columns[None, :]


def check_size(size: Size) -> Size:
    """A range of sizes: two whole numbers of pixels, or two fractions of the side."""
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise InputError(f"size must be a pair (low, high); saw {size!r}.")
    low, high = size
    if all(isinstance(s, Integral) and not isinstance(s, bool) for s in size):
        size = int(low), int(high)
    elif all(isinstance(s, Real) and not isinstance(s, Integral) for s in size) and high <= 1:
        size = float(low), float(high)
    else:
        raise InputError(
            "size must be two whole numbers (pixels) or two fractions of the side, at most 1.0 "
            f"and written with a point; saw {size}."
        )
    if not 0 < low <= high:
        raise InputError(f"size must be (low, high) with 0 < low <= high; saw {size}.")
    return size


def size_range(size: Size, side: int) -> tuple[int, int]:
    """The range in pixels for an image of this side, both ends included.

    >>> size_range((0.5, 0.75), 32), size_range((16, 24), 32)
    ((16, 24), (16, 24))
    """
    low, high = (max(1, round(s * side)) if isinstance(s, float) else s for s in size)
    if high > side:
        raise InputError(f"size {size} is larger than the image, whose side is {side} pixels.")
    return low, high


def window_sizes(x: Tensor, size: Size, choose: Tensor) -> tuple[Tensor, Tensor]:
    """Random window heights and widths in pixels, shape of ``choose`` (uniform on [0, 1)).

    Sizes count along the height; on an image that is not square the width keeps its proportion.
    """
    height, width = x.shape[-2:]
    low, high = size_range(size, height)
    tall = low + (choose * (high - low + 1)).long()
    wide = (tall * width / height).round().long().clamp(1, width)
    return tall, wide


def placed(tensor: Tensor) -> Tensor:
    """(samples, draws) -> (samples, draws, 1, 1), to broadcast against pixel axes."""
    return tensor[..., None, None]


def rotate(x: Tensor, degrees: Tensor, *, mode: str = "bilinear") -> Tensor:
    """Rotate counter-clockwise; ``degrees`` has shape (samples, draws)."""
    rows, columns = pixel_axes(x)
    middle_y, middle_x = (x.shape[-2] - 1) / 2, (x.shape[-1] - 1) / 2
    dy, dx = rows - middle_y, columns - middle_x
    angle = placed(degrees * (math.pi / 180)).to(rows.dtype)
    cos, sin = angle.cos(), angle.sin()
    rows, columns = sin * dx + cos * dy + middle_y, cos * dx - sin * dy + middle_x
    return sample_at(x, rows, columns, mode=mode, outside="zeros")


def _inside(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """1 where the output shows the picture, 0 where it is black; (samples, draws, 1, H, W)."""
    i, j = pixel_axes(x)
    i, j = i - placed(top), j - placed(left)
    shown = (i >= 0) & (i < placed(tall)) & (j >= 0) & (j < placed(wide))
    return shown.to(x.dtype)[:, :, None]


def resize_pad(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Resize each picture to tall x wide and put it at (top, left); all (samples, draws)."""
    i, j = pixel_axes(x)
    rows = (i - placed(top) + 0.5) * (x.shape[-2] / placed(tall)) - 0.5
    columns = (j - placed(left) + 0.5) * (x.shape[-1] / placed(wide)) - 0.5
    return sample_at(x, rows, columns) * _inside(x, tall, wide, top, left)


def crop_pad(
    x: Tensor,
    tall: Tensor,
    wide: Tensor,
    top: Tensor,
    left: Tensor,
    from_top: Tensor,
    from_left: Tensor,
) -> Tensor:
    """Move the tall x wide window at (from_top, from_left) to (top, left); black elsewhere."""
    i, j = pixel_axes(x)
    rows, columns = i + placed(from_top - top), j + placed(from_left - left)
    return sample_at(x, rows, columns, mode="nearest") * _inside(x, tall, wide, top, left)


def crop_resize(x: Tensor, tall: Tensor, wide: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Resize the tall x wide window at (top, left) to the whole picture; all (samples, draws)."""
    i, j = pixel_axes(x)
    top, left, tall, wide = placed(top), placed(left), placed(tall), placed(wide)
    rows = (i + 0.5) * (tall / x.shape[-2]) - 0.5  # inside the window, whose edge goes on
    columns = (j + 0.5) * (wide / x.shape[-1]) - 0.5
    return sample_at(
        x, top + rows.clamp(min=0).minimum(tall - 1), left + columns.clamp(min=0).minimum(wide - 1)
    )
