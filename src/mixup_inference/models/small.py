"""Small networks for small images, quick to train on a laptop."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from mixup_inference.models.base import ImageClassifier, Scale, layer
from mixup_inference.validation import check_int


class SmallCNN(ImageClassifier):
    """Three 3x3 convolutions with batch norm, the second halving the side, then a mean and fc."""

    def __init__(
        self, *, classes: int, channels: int, width: int = 32, **scale: Unpack[Scale]
    ) -> None:
        super().__init__(channels=channels, **scale)
        check_int(width, what="width", least=1)
        self.features = nn.Sequential(
            layer(channels, width),
            layer(width, 2 * width, stride=2),
            layer(2 * width, 2 * width),
        )
        self.classifier = nn.Linear(2 * width, classes)

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        out: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return out


class FastResNet(ImageClassifier):
    """53 M multiply-adds at 32x32 and 0.76 M parameters (for 10 classes and the default width)."""

    def __init__(
        self, *, classes: int, channels: int = 3, width: int = 64, **scale: Unpack[Scale]
    ) -> None:
        super().__init__(channels=channels, **scale)
        check_int(width, what="width", least=2)
        self.features = nn.Sequential(
            layer(channels, width // 2),
            layer(width // 2, width, stride=2),
            Residual(width),
            layer(width, 2 * width, stride=2),
            Residual(2 * width),
            layer(2 * width, 4 * width, stride=2),
        )
        self.classifier = nn.Linear(4 * width, classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return out


class Residual(nn.Module):
    """Two layers and a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(layer(width, width), layer(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = x + self.layers(x)
        return out
