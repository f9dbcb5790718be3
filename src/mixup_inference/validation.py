"""Checks of what callers hand in. Each returns the checked value or raises an InputError."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from mixup_inference.errors import InputError, unknown_name

T = TypeVar("T")

#: How far a pixel may stray from [0, 1] before we call it a mistake of scale, not of rounding.
PIXEL_SLACK = 1e-4


def check_images(x: Tensor, *, what: str = "x") -> Tensor:
    """Images must be a non-empty NCHW float batch with finite pixels in [0, 1]."""
    if not isinstance(x, Tensor):
        raise InputError(f"{what} must be a torch tensor; saw {type(x).__name__}.")
    if x.ndim != 4:
        raise InputError(
            f"{what} must have 4 dimensions (batch, channels, height, width); "
            f"saw shape {tuple(x.shape)}."
        )
    if x.numel() == 0:
        raise InputError(f"{what} is an empty batch; give at least one image.")
    if not x.is_floating_point():
        raise InputError(f"{what} must be float in [0, 1]; saw {x.dtype}. Divide by 255.")
    return check_pixels(x, what=what)


def check_stored_images(images: Tensor, *, what: str) -> Tensor:
    """Images as they are kept: a non-empty NCHW batch, uint8 or float in [0, 1]."""
    if not isinstance(images, Tensor) or images.is_floating_point():
        return check_images(images, what=what)
    if images.dtype != torch.uint8:
        raise InputError(f"{what} must be uint8 or float in [0, 1]; saw {images.dtype}.")
    check_images(as_pixels(images[:1]), what=what)  # uint8 is in range; shapes can be wrong
    return images


def check_pixels(x: Tensor, *, what: str) -> Tensor:
    """Float pixels must be finite and lie in [0, 1], up to rounding."""
    low, high = (float(v) for v in torch.aminmax(x.detach()))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"{what} contains NaN or infinite pixels.")
    if low < -PIXEL_SLACK or high > 1 + PIXEL_SLACK:
        advice = (
            "Divide by 255."
            if low >= 0 and high > 2
            else "Put the normalisation inside the model and give raw pixels."
        )
        raise InputError(
            f"pixels of {what} must lie in [0, 1]; saw [{low:.4g}, {high:.4g}]. {advice}"
        )
    return x


def as_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images as floats: uint8 is divided by 255, floats are taken to lie in [0, 1] already."""
    if images.dtype == torch.uint8:
        return images.to(dtype).div_(255)
    return images.to(dtype)


def check_labels(y: Tensor, *, count: int, classes: int | None = None, what: str = "y") -> Tensor:
    """Labels must be ``count`` integers in [0, classes); returned as int64."""
    if not isinstance(y, Tensor):
        raise InputError(f"{what} must be a torch tensor; saw {type(y).__name__}.")
    if y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"{what} must be a vector of integer labels; saw {y.dtype} with shape {tuple(y.shape)}."
        )
    if y.shape[0] != count:
        raise InputError(f"{what} has {y.shape[0]} labels for {count} images.")
    y = y.long()
    if count:
        low, high = (int(v) for v in torch.aminmax(y))
        if low < 0 or (classes is not None and high >= classes):
            wrong = low if low < 0 else high
            limit = "" if classes is None else f" and below {classes}, the number of classes"
            raise InputError(f"{what} contains label {wrong}; labels must be at least 0{limit}.")
    return y


def check_index(index: Tensor, *, count: int, device: torch.device) -> Tensor:
    """Sample positions must be ``count`` integers; returned as int64 on ``device``."""
    index = torch.as_tensor(index)
    if index.shape != (count,) or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"index must hold one integer per image ({count}); "
            f"saw {index.dtype} with shape {tuple(index.shape)}."
        )
    return index.to(device=device, dtype=torch.int64)


def check_int(value: object, *, what: str, least: int) -> int:
    """A whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{what} must be a whole number; saw {value!r}.")
    number = int(value)
    if not least <= number < 2**63:
        bounds = f"at least {least}" if number < least else "below 2**63"
        raise InputError(f"{what} must be {bounds}; saw {number}.")
    return number


def check_choice(value: T, *, what: str, known: Collection[str]) -> T:
    """One of the known names."""
    if value not in known:
        raise unknown_name(what, str(value), known)
    return value


def check_number(
    value: object, *, what: str, least: float = -math.inf, most: float = math.inf
) -> float:
    """A finite number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{what} must be a number; saw {value!r}.")
    number = float(value)
    if not math.isfinite(number) or number < least or number > most:
        bounds = f"in [{least:g}, {most:g}]" if most < math.inf else f"at least {least:g}"
        raise InputError(f"{what} must be {bounds}; saw {value!r}.")
    return number


def describe(problem: Mapping[str, Any], name: str) -> str:
    """A sentence for one of the problems that pydantic has with a setting of this name."""
    if (cause := problem.get("ctx", {}).get("error")) is not None:
        return str(cause)
    return f"{problem['msg'].replace('Input should', f'{name} must')}; saw {problem['input']!r}."
