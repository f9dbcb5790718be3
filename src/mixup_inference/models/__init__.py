"""Networks, and their weights on disk."""

from mixup_inference.models.base import DummyClassifier, Normalized
from mixup_inference.models.checkpoint import (
    WEIGHTS,
    config_of,
    fill_weights,
    load_checkpoint,
    load_weights,
    read_checkpoint,
    save_checkpoint,
    shipped_models,
    weights_file,
)
from mixup_inference.models.pretrained import (
    CONFIG,
    check_pretrained,
    from_pretrained,
    save_pretrained,
)
from mixup_inference.models.registry import (
    MODELS,
    NETWORKS,
    NetworkEntry,
    create_model,
    import_model,
)

__all__ = [
    "CONFIG",
    "MODELS",
    "NETWORKS",
    "WEIGHTS",
    "DummyClassifier",
    "NetworkEntry",
    "Normalized",
    "check_pretrained",
    "config_of",
    "create_model",
    "fill_weights",
    "from_pretrained",
    "import_model",
    "load_checkpoint",
    "load_weights",
    "read_checkpoint",
    "save_checkpoint",
    "save_pretrained",
    "shipped_models",
    "weights_file",
]
