"""Training: ERM, mixup, adversarial training, interpolated adversarial training."""

from mixup_inference.training.loop import BEST, LAST, Epoch, train
from mixup_inference.training.recipe import OBJECTIVES, Recipe, learning_rate

__all__ = ["BEST", "LAST", "OBJECTIVES", "Epoch", "Recipe", "learning_rate", "train"]
