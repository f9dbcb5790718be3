"""A small convolutional network for small images: the digits in seconds on a laptop."""

from __future__ import annotations

from torch import Tensor, nn

from mixup_inference.checks import check_int


class SmallCNN(nn.Module):
    """Three 3x3 convolutions with batch norm, the second halving the side, then a mean and fc.

    Pixels in [0, 1] are shifted and scaled inside, so callers never normalise.
    """

    def __init__(self, *, classes: int, channels: int, width: int = 32) -> None:
        super().__init__()
        check_int(width, what="width", least=1)
        self.features = nn.Sequential(
            _convolution(channels, width),
            _convolution(width, 2 * width, stride=2),
            _convolution(2 * width, 2 * width),
        )
        self.classifier = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        out: Tensor = self.classifier(self.features((x - 0.5) / 0.5).mean((2, 3)))
        return out


def _convolution(channels: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )
