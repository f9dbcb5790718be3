"""Training: ERM, mixup, adversarial training, interpolated adversarial training, and others."""

from mixup_inference.training import adversarial, manifold, mit, mixing  # noqa: F401 (they register)
from mixup_inference.training.checkpointing import BEST, LAST, Epoch
from mixup_inference.training.distributed import in_precision_of, make_fabric, one_process
from mixup_inference.training.loop import train
from mixup_inference.training.objectives import OBJECTIVES, Batch, Examples, ObjectiveEntry
from mixup_inference.training.recipe import Recipe, learning_rate

__all__ = [
    "BEST",
    "LAST",
    "OBJECTIVES",
    "Batch",
    "Epoch",
    "Examples",
    "ObjectiveEntry",
    "Recipe",
    "in_precision_of",
    "learning_rate",
    "make_fabric",
    "one_process",
    "train",
]
