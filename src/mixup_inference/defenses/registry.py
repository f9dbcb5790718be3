"""Defences by name, and the paper's parameter tables as presets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from mixup_inference.defenses.base import Options
from mixup_inference.defenses.baselines import CropResize, GaussianNoise, RandomRotation, ResizePad
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.mixup import MixupInference
from mixup_inference.draws import Beta, Uniform
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.pool import Pool

#: name -> (class, settings that the name implies)
_KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "gaussian": (GaussianNoise, {}),
    "rotation": (RandomRotation, {}),
    "resize-pad": (ResizePad, {}),
    "crop-resize": (CropResize, {}),
    "mi-ol": (MixupInference, {"labels": "other"}),
    "mi-pl": (MixupInference, {"labels": "predicted"}),
    "mi-combined": (CombinedInference, {}),
}

DEFENSES = ("none", *_KINDS)


def settings_of(kind: str) -> set[str]:
    """The names of the settings that a defence takes.

    >>> sorted(settings_of("gaussian"))
    ['chunk', 'clip', 'draws', 'engine', 'fresh', 'seed', 'sigma']
    """
    if kind == "none":
        return set()
    if kind not in _KINDS:
        raise unknown_name("defence", kind, DEFENSES)
    cls, implied = _KINDS[kind]
    own = set(inspect.signature(cls).parameters) - {"model", "pool", "options"}
    return (own - set(implied)) | Options.__optional_keys__


def make_defense(
    kind: str, model: nn.Module, pool: Pool | None = None, **settings: Any
) -> nn.Module:
    """Wrap ``model`` in the defence of this name; "none" gives the model back.

    Mixing ratios may be written as in TOML: ``{"uniform": [0.4, 0.6]}``, ``{"beta": [2, 2]}``.
    """
    for name in set(settings) - settings_of(kind):
        raise unknown_name(f"setting of {kind}", name, settings_of(kind))
    if kind == "none":
        return model
    cls, implied = _KINDS[kind]
    settings = {name: _from_toml(value) for name, value in settings.items()} | implied
    if "pool" not in inspect.signature(cls).parameters:
        return cls(model, **settings)
    if pool is None:
        raise InputError(f"the defence {kind!r} needs a pool of clean images.")
    return cls(model, pool, **settings)


def _from_toml(value: Any) -> Any:
    """Lists become tuples and tables become distributions."""
    if isinstance(value, Mapping):
        names: dict[str, type[Uniform | Beta]] = {"uniform": Uniform, "beta": Beta}
        for name, ends in value.items():
            pair = isinstance(ends, list | tuple) and len(ends) == 2
            if pair and name in names and len(value) == 1:
                return names[name](*ends)
        raise InputError(
            f"a ratio is a number, {{uniform = [low, high]}} or {{beta = [a, b]}}; saw {value}."
        )
    return tuple(value) if isinstance(value, list) else value
