"""Mixup inference (Pang, Xu and Zhu, ICLR 2020): defend, detect, attack, and measure honestly.

The names below are imported when they are first used, so that ``import mixup_inference`` and
``mixup-inference --help`` stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixup_inference.attacks import pgd
    from mixup_inference.defenses import (
        CombinedInference,
        CropResize,
        GaussianNoise,
        MixupInference,
        RandomRotation,
        ResizePad,
        get_preset,
        make_defense,
    )
    from mixup_inference.detection import MixupDetector
    from mixup_inference.draws import Beta, Uniform
    from mixup_inference.errors import InputError, MixupInferenceError
    from mixup_inference.evaluation import evaluate
    from mixup_inference.models import create_model, load_checkpoint, save_checkpoint
    from mixup_inference.pool import Pool
    from mixup_inference.training import train

__version__ = "0.1.0"

_HOMES = {
    "attacks": ["pgd"],
    "defenses": [
        "CombinedInference",
        "CropResize",
        "GaussianNoise",
        "MixupInference",
        "RandomRotation",
        "ResizePad",
        "get_preset",
        "make_defense",
    ],
    "detection": ["MixupDetector"],
    "draws": ["Beta", "Uniform"],
    "errors": ["InputError", "MixupInferenceError"],
    "evaluation": ["evaluate"],
    "models": ["create_model", "load_checkpoint", "save_checkpoint"],
    "pool": ["Pool"],
    "training": ["train"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Beta",
    "CombinedInference",
    "CropResize",
    "GaussianNoise",
    "InputError",
    "MixupDetector",
    "MixupInference",
    "MixupInferenceError",
    "Pool",
    "RandomRotation",
    "ResizePad",
    "Uniform",
    "create_model",
    "evaluate",
    "get_preset",
    "load_checkpoint",
    "make_defense",
    "pgd",
    "save_checkpoint",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
