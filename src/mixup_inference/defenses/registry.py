"""Defences by name, and the paper's parameter tables as presets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from mixup_inference.defenses.base import Options
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.crop_resize import CropResize
from mixup_inference.defenses.mixup import MixupInference
from mixup_inference.defenses.noise import GaussianNoise
from mixup_inference.defenses.preset_file import read_preset
from mixup_inference.defenses.resize_pad import ResizePad
from mixup_inference.defenses.rotation import RandomRotation
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


@dataclass(frozen=True)
class Preset:
    """One row of the paper's Table 4 (CIFAR-10) or Table 5 (CIFAR-100)."""

    objective: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(
        self, model: nn.Module, pool: Pool | None = None, **options: Unpack[Options]
    ) -> nn.Module:
        """Wrap a model in this row's defence."""
        if self.kind == "none":
            return model
        return make_defense(self.kind, model, pool, **self.settings, **options)


def _sigma(published: float) -> dict[str, Any]:
    """The paper's code has pixels in [-1, 1]; ours are in [0, 1], half as wide."""
    return {"sigma": published / 2}


def _xie(low: int, high: int) -> dict[str, Any]:
    """The tables say "random crop size": the published code crops and pads, without resizing."""
    return {"size": (low, high), "variant": "crop"}


def _guo(low: int, high: int) -> dict[str, Any]:
    return {"size": (low, high)}


# MI-Combined's two ratios are printed with one name; the first is that of MI-PL.
_COMBINED = {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": 0.2}

PRESETS: Mapping[str, Preset] = {
    # Table 4
    "cifar10/mixup": Preset("mixup", "none"),
    "cifar10/mixup+gaussian": Preset("mixup", "gaussian", _sigma(0.04)),
    "cifar10/mixup+rotation": Preset("mixup", "rotation", {"degrees": 40.0}),
    "cifar10/mixup+resize-pad": Preset("mixup", "resize-pad", _xie(16, 24)),
    "cifar10/mixup+crop-resize": Preset("mixup", "crop-resize", _guo(22, 30)),
    "cifar10/erm+mi-ol": Preset("erm", "mi-ol", {"lam": 0.6}),
    "cifar10/mixup+mi-ol": Preset("mixup", "mi-ol", {"lam": 0.5}),
    "cifar10/mixup+mi-combined": Preset("mixup", "mi-combined", _COMBINED),
    "cifar10/iat": Preset("iat", "none"),
    "cifar10/iat+gaussian": Preset("iat", "gaussian", _sigma(0.075)),
    "cifar10/iat+rotation": Preset("iat", "rotation", {"degrees": 30.0}),
    "cifar10/iat+resize-pad": Preset("iat", "resize-pad", _xie(20, 28)),
    "cifar10/iat+crop-resize": Preset("iat", "crop-resize", _guo(20, 28)),
    "cifar10/at+mi-ol": Preset("at", "mi-ol", {"lam": 0.8}),
    "cifar10/iat+mi-ol": Preset("iat", "mi-ol", {"lam": 0.6}),
    # Table 5
    "cifar100/mixup": Preset("mixup", "none"),
    "cifar100/mixup+gaussian": Preset("mixup", "gaussian", _sigma(0.025)),
    "cifar100/mixup+rotation": Preset("mixup", "rotation", {"degrees": 20.0}),
    "cifar100/mixup+resize-pad": Preset("mixup", "resize-pad", _xie(18, 26)),
    "cifar100/mixup+crop-resize": Preset("mixup", "crop-resize", _guo(24, 32)),
    "cifar100/mixup+mi-ol": Preset("mixup", "mi-ol", {"lam": 0.5}),
    "cifar100/mixup+mi-combined": Preset("mixup", "mi-combined", _COMBINED),
    "cifar100/iat": Preset("iat", "none"),
    "cifar100/iat+gaussian": Preset("iat", "gaussian", _sigma(0.06)),
    "cifar100/iat+rotation": Preset("iat", "rotation", {"degrees": 20.0}),
    "cifar100/iat+resize-pad": Preset("iat", "resize-pad", _xie(22, 30)),
    "cifar100/iat+crop-resize": Preset("iat", "crop-resize", _guo(24, 32)),
    "cifar100/iat+mi-ol": Preset("iat", "mi-ol", {"lam": 0.6}),
}


def get_preset(name: str) -> Preset:
    """A row of the paper's parameter tables by name, or a preset file by its path (.toml).

    >>> get_preset("cifar10/mixup+gaussian").settings
    {'sigma': 0.02}
    """
    if name.endswith(".toml"):
        kind, settings = read_preset(Path(name))
        for key in settings.keys() - settings_of(kind):
            raise unknown_name(f"setting of {kind}", key, settings_of(kind))
        return Preset("", kind, settings)
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]
