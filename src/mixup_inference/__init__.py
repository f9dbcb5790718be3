"""Mixup inference (Pang, Xu and Zhu, ICLR 2020): defend, detect, attack, and measure honestly.

The names below are imported when they are first used, so that ``import mixup_inference`` and
``mixup-inference --help`` stay light.
"""
# isort: skip_file

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

#: Where the public names live.
_HOMES = {
    "attacks": "apgd_eot detector_aware eot_pgd judge paper_adaptive pgd square_eot transfer",
    "datasets": "load_dataset",
    "defenses": "CombinedInference CropResize GaussianNoise MixupInference RandomRotation "
    "ResizePad get_preset make_defense",
    "detection": "MixupDetector",
    "draws": "Beta Uniform",
    "errors": "InputError MixupInferenceError",
    "evaluation": "RobustAccuracy check_attack evaluate",
    "models": "create_model from_pretrained load_checkpoint load_weights save_checkpoint "
    "save_pretrained",
    "pool": "Pool",
    "training": "train",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605

if TYPE_CHECKING:  # the same for type checkers, which cannot read the table
    from mixup_inference.attacks import (
        apgd_eot as apgd_eot,
        detector_aware as detector_aware,
        eot_pgd as eot_pgd,
        judge as judge,
        paper_adaptive as paper_adaptive,
        pgd as pgd,
        square_eot as square_eot,
        transfer as transfer,
    )
    from mixup_inference.datasets import load_dataset as load_dataset
    from mixup_inference.defenses import (
        CombinedInference as CombinedInference,
        CropResize as CropResize,
        GaussianNoise as GaussianNoise,
        MixupInference as MixupInference,
        RandomRotation as RandomRotation,
        ResizePad as ResizePad,
        get_preset as get_preset,
        make_defense as make_defense,
    )
    from mixup_inference.detection import MixupDetector as MixupDetector
    from mixup_inference.draws import Beta as Beta, Uniform as Uniform
    from mixup_inference.errors import (
        InputError as InputError,
        MixupInferenceError as MixupInferenceError,
    )
    from mixup_inference.evaluation import (
        RobustAccuracy as RobustAccuracy,
        check_attack as check_attack,
        evaluate as evaluate,
    )
    from mixup_inference.models import (
        create_model as create_model,
        from_pretrained as from_pretrained,
        load_checkpoint as load_checkpoint,
        load_weights as load_weights,
        save_checkpoint as save_checkpoint,
        save_pretrained as save_pretrained,
    )
    from mixup_inference.pool import Pool as Pool
    from mixup_inference.training import train as train


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
