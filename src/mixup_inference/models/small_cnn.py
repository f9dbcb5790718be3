"""A small convolutional network for small images: the digits in seconds on a laptop."""

from __future__ import annotations

from torch import Tensor, nn

from mixup_inference.checks import check_int
from mixup_inference.models.base import ImageClassifier, PerChannel, layer


class SmallCNN(ImageClassifier):
    """Three 3x3 convolutions with batch norm, the second halving the side, then a mean and fc."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        mean: PerChannel = 0.5,
        std: PerChannel = 0.5,
        width: int = 32,
    ) -> None:
        super().__init__(channels=channels, mean=mean, std=std)
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
