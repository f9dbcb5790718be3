"""Mixup inference (Pang, Xu and Zhu, ICLR 2020): defend, detect, attack, and measure honestly.

The names below are imported when they are first used, so that ``import mixup_inference`` and
``mixup-inference --help`` stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mixup_inference.version import __version__ as __version__

if TYPE_CHECKING:
    from mixup_inference.attacks import (
        apgd_eot,
        detector_aware,
        eot_pgd,
        judge,
        paper_adaptive,
        pgd,
        square_eot,
        transfer,
    )
    from mixup_inference.datasets import load_dataset
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
    from mixup_inference.evaluation import RobustAccuracy, check_attack, evaluate
    from mixup_inference.models import (
        create_model,
        from_pretrained,
        load_checkpoint,
        load_weights,
        save_checkpoint,
        save_pretrained,
    )
    from mixup_inference.pool import Pool
    from mixup_inference.training import train

_HOMES = {
    "attacks": [
        "apgd_eot",
        "detector_aware",
        "eot_pgd",
        "judge",
        "paper_adaptive",
        "pgd",
        "square_eot",
        "transfer",
    ],
    "datasets": ["load_dataset"],
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
    "evaluation": ["RobustAccuracy", "check_attack", "evaluate"],
    "models": [
        "create_model",
        "from_pretrained",
        "load_checkpoint",
        "load_weights",
        "save_checkpoint",
        "save_pretrained",
    ],
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
    "RobustAccuracy",
    "Uniform",
    "apgd_eot",
    "check_attack",
    "create_model",
    "detector_aware",
    "eot_pgd",
    "evaluate",
    "from_pretrained",
    "get_preset",
    "judge",
    "load_checkpoint",
    "load_dataset",
    "load_weights",
    "make_defense",
    "paper_adaptive",
    "pgd",
    "save_checkpoint",
    "save_pretrained",
    "square_eot",
    "train",
    "transfer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
