"""A residual network that learns CIFAR in minutes on a CPU or a small GPU.

In the spirit of the speed-run networks for CIFAR-10: convolutions at full resolution are few and
narrow, the side is halved early, residual blocks work at 16x16 and 8x8, and tensors are kept
channels-last, which convolutions on a CPU prefer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixup_inference.checks import check_int
from mixup_inference.models.base import ImageClassifier, PerChannel, layer


class FastResNet(ImageClassifier):
    """53 M multiply-adds at 32x32 and 0.76 M parameters (for 10 classes and the default width)."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int = 3,
        mean: PerChannel = 0.5,
        std: PerChannel = 0.5,
        width: int = 64,
    ) -> None:
        super().__init__(channels=channels, mean=mean, std=std)
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
