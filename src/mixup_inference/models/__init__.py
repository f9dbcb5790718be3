"""Networks, and their weights on disk."""

from mixup_inference.models.checkpoint import (
    fill_weights,
    load_checkpoint,
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from mixup_inference.models.registry import MODELS, create_model

__all__ = [
    "MODELS",
    "create_model",
    "fill_weights",
    "load_checkpoint",
    "load_weights",
    "read_checkpoint",
    "save_checkpoint",
]
