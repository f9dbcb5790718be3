"""Residual networks for 32x32 images (He et al., 2016).

Parameter names are those of the widely used public checkpoints: ``resnet20`` to ``resnet56`` with
option-A shortcuts, ``preact_resnet18``, and ``official_resnet50``, the network that the paper's
published code really used under the name ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from mixup_inference.errors import InputError
from mixup_inference.models.base import ImageClassifier, Scale, convolution


def _stage(
    block: Callable[[int, int, int], nn.Module], count: int, channels: int, width: int, stride: int
) -> nn.Sequential:
    """Blocks in a row, of which the first changes the width and takes the stride."""
    return nn.Sequential(
        block(channels, width, stride), *(block(width, width, 1) for _ in range(count - 1))
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut drops every other pixel and pads channels (option A)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, width, stride=stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.missing = stride, width - channels

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        front, kept = self.missing // 2, x[:, :, :: self.stride, :: self.stride]
        return relu(out + pad(kept, (0, 0, 0, 0, front, self.missing - front)))


class CifarResNet(ImageClassifier):
    """ResNet-20/32/44/56 of He et al., Section 4.2: 6n + 2 layers, n blocks of each width."""

    def __init__(
        self, *, depth: int = 20, classes: int, channels: int = 3, **scale: Unpack[Scale]
    ) -> None:
        super().__init__(channels=channels, **scale)
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise InputError(f"depth must be 6n + 2, such as 20; saw {depth}.")
        self.conv1 = convolution(channels, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(BasicBlock, blocks, 16, 16, 1)
        self.layer2 = _stage(BasicBlock, blocks, 16, 32, 2)
        self.layer3 = _stage(BasicBlock, blocks, 32, 64, 2)
        self.linear = nn.Linear(64, classes)

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        x = relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


class PreActBlock(nn.Module):
    """Batch norm and ReLU before each convolution (He et al., 2016b)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = convolution(channels, width, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(convolution(channels, width, stride=stride, size=1))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        residual: Tensor = self.conv2(relu(self.bn2(self.conv1(out))))
        return residual + shortcut


class PreActResNet18(ImageClassifier):
    """Pre-activation ResNet-18 with a 3x3 stem: 11.2 M parameters."""

    def __init__(self, *, classes: int, channels: int = 3, **scale: Unpack[Scale]) -> None:
        super().__init__(channels=channels, **scale)
        self.conv1 = convolution(channels, 64)
        self.layer1 = _stage(PreActBlock, 2, 64, 64, 1)
        self.layer2 = _stage(PreActBlock, 2, 64, 128, 2)
        self.layer3 = _stage(PreActBlock, 2, 128, 256, 2)
        self.layer4 = _stage(PreActBlock, 2, 256, 512, 2)
        self.bn = nn.BatchNorm2d(512)
        self.linear = nn.Linear(512, classes)

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        out: Tensor = self.linear(relu(self.bn(x)).mean((2, 3)))
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with ReLU after the sum; unlike He et al.'s it does not widen (expansion 1)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, width, size=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width, size=1)
        self.bn3 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != width:
            narrow = convolution(channels, width, stride=stride, size=1)
            self.downsample = nn.Sequential(narrow, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return relu(out + (x if self.downsample is None else self.downsample(x)))


class OfficialResNet50(ImageClassifier):
    """The "ResNet-50" of the paper's code: three stages of five bottlenecks, 4.75 M parameters.

    Its inputs are in [-1, 1], which the default mean and std give.
    """

    def __init__(self, *, classes: int, channels: int = 3, **scale: Unpack[Scale]) -> None:
        super().__init__(channels=channels, **scale)
        self.conv1 = convolution(channels, 64, size=5)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(Bottleneck, 5, 64, 64, 1)
        self.layer2 = _stage(Bottleneck, 5, 64, 128, 2)
        self.layer3 = _stage(Bottleneck, 5, 128, 256, 2)
        self.fc_dense = nn.Linear(256, classes)

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        x = relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.fc_dense(x.mean((2, 3)))
        return out
