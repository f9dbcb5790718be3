"""What our networks share: pixels in [0, 1] come in and are normalised inside."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.models.call import unwrap
from mixup_inference.validation import check_int

PerChannel = float | Sequence[float]


class ImageClassifier(nn.Module, ABC):
    """A network on (x - mean) / std, with mean and std per channel or common to all.

    The two are settings, not weights: they are kept out of the ``state_dict``, whose names stay
    those of published checkpoints, and travel in the header of our own.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, *, channels: int, mean: PerChannel, std: PerChannel) -> None:
        super().__init__()
        check_int(channels, what="channels", least=1)
        for name, value in (("mean", mean), ("std", std)):
            numbers = _numbers(name, value)
            if len(numbers) not in (1, channels):
                raise InputError(f"{name} must be one number or {channels}; saw {value}.")
            if name == "std" and min(numbers) <= 0:
                raise InputError(f"std must be positive; saw {value}.")
            self.register_buffer(name, torch.tensor(numbers).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, classes), from pixels in [0, 1]."""
        return self.logits((x - self.mean) / self.std)

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""


def _numbers(name: str, value: Any) -> list[float]:
    """One number or several, from whatever they come in."""
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        if isinstance(value, str):
            raise TypeError
        numbers = [float(v) for v in (value if isinstance(value, Sequence) else [value])]
    except (TypeError, ValueError):
        raise InputError(f"{name} must be one number or one per channel; saw {value!r}.") from None
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(f"{name} must be finite; saw {value!r}.")
    return numbers


def convolution(channels: int, width: int, *, stride: int = 1, size: int = 3) -> nn.Conv2d:
    """A convolution that keeps the side (but for the stride) and leaves the bias to batch norm."""
    return nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)


def layer(channels: int, width: int, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(
        convolution(channels, width, stride=stride), nn.BatchNorm2d(width), nn.ReLU()
    )


class Normalized(ImageClassifier):
    """Any classifier of normalised images, made into one of pixels in [0, 1].

    >>> model = Normalized(nn.Flatten(), channels=1, mean=0.5, std=0.5)
    """

    def __init__(
        self, model: nn.Module, *, channels: int = 3, mean: PerChannel, std: PerChannel
    ) -> None:
        super().__init__(channels=channels, mean=mean, std=std)
        self.model = model

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        out: Tensor = unwrap(self.model(x))
        return out


class DummyClassifier(nn.Module):
    """A classifier without weights, to try defences and attacks out on.

    Its logits rise with the mean pixel, each class at its own rate; with ``slope`` 0 it finds all
    classes equally likely.
    """

    def __init__(self, classes: int, *, slope: float = 1.0) -> None:
        super().__init__()
        self.rates = slope * torch.arange(classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        return x.flatten(1).mean(1, keepdim=True) * self.rates.to(x)
