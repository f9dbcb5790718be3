"""DEFENSES: one record for each defence. A user's own is an entry too.

A factory is a class or function ``(model, ...)`` or ``(model, pool, ...)`` that returns a module
from NCHW images in [0, 1] to logits or log-probabilities: a ``Defense``, or any other module, which
may draw from torch's global generators in ``forward``. Its further arguments are the settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args, get_type_hints

from torch import nn

from mixup_inference.defenses import published
from mixup_inference.defenses.bart import BarrageOfTransforms
from mixup_inference.defenses.base import Options
from mixup_inference.defenses.baselines import CropResize, GaussianNoise, RandomRotation, ResizePad
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.dip import DataInterpolatingPrediction
from mixup_inference.defenses.mixup import MixupInference
from mixup_inference.defenses.preprocessing import (
    BitDepthReduction,
    GaussianBlur,
    JpegCompression,
    Resize,
)
from mixup_inference.defenses.smoothing import RandomizedSmoothing
from mixup_inference.defenses.total_variation import TotalVariationMinimization
from mixup_inference.draws import Beta, Uniform
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.pool import Pool
from mixup_inference.registry import Registry

Group = Literal["none", "mixup", "baseline", "published", "control", "user"]


@dataclass(frozen=True)
class DefenseEntry:
    """Everything that the rest of the package knows of a defence.

    Attributes:
        name: in specs and on the command line.
        factory: called with the model, the pool if it takes one, and the settings.
        fixed: settings that the name implies.
        random: whether an image can get different answers.
        group: what it is compared as; "published" is a baseline as the paper's published code has
            it, "control" a filter that shows what blurring alone does to oblivious attacks.
        title: in tables and figures; by default the factory's attribute ``title``, or the name.
        grid: the settings that tuning tries, from gentle to strong; by default the factory's
            attribute ``grid``.
        costliest: settings under which it makes the most forward passes, to estimate its cost.
    """

    name: str
    factory: Callable[..., nn.Module]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    random: bool = True
    group: Group = "user"
    title: str = ""
    grid: Sequence[Mapping[str, Any]] = ()
    costliest: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.factory) or not inspect.signature(self.factory).parameters:
            raise InputError(
                f"the defence {self.name!r} must be a class or function that makes a module of a "
                f"model; saw {self.factory!r}."
            )
        for name, default in (("title", self.name), ("grid", ())):
            if not getattr(self, name):
                object.__setattr__(self, name, getattr(self.factory, name, default))

    @property
    def needs_pool(self) -> bool:
        """Whether the factory takes a pool of clean samples."""
        return "pool" in inspect.signature(self.factory).parameters

    @property
    def settings(self) -> set[str]:
        """The names of the settings that it takes."""
        _, *rest = inspect.signature(self.factory).parameters.values()
        names = {p.name for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        for parameter in rest:
            if parameter.kind is parameter.VAR_KEYWORD:
                names |= _unpacked(self.factory, parameter.name)
        return names - {"pool"} - self.fixed.keys()

    def makes(self, kind: type[nn.Module]) -> bool:
        """Whether the factory is this class or a subclass of it."""
        return isinstance(self.factory, type) and issubclass(self.factory, kind)

    def build(self, model: nn.Module, pool: Pool | None = None, **settings: Any) -> nn.Module:
        """Wrap a model in the defence.

        Settings are checked; those of ``Options`` are dropped where the factory does not take them.
        """
        known = self.settings
        for name in settings.keys() - known - Options.__optional_keys__:
            raise unknown_name(f"setting of {self.name}", name, known)
        if self.needs_pool and pool is None:
            raise InputError(f"the defence {self.name!r} needs a pool of clean images.")
        given = {name: from_toml(value) for name, value in settings.items() if name in known}
        given.update(self.fixed)
        if self.needs_pool:
            given["pool"] = pool
        defended = self.factory(model, **given)
        if not isinstance(defended, nn.Module):
            raise InputError(
                f"the defence {self.name!r} must be a torch module; its factory returned "
                f"{type(defended).__name__}."
            )
        return defended


def _unpacked(factory: Callable[..., Any], name: str) -> frozenset[str]:
    """The settings in ``**options: Unpack[...]``; without such a type, those of ``Options``."""
    try:
        hints = get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    except (NameError, TypeError):  # types for type checkers only, or an object that is called
        hints = {}
    known = (getattr(kind, "__optional_keys__", None) for kind in get_args(hints.get(name)))
    return next(filter(None, known), Options.__optional_keys__)


DEFENSES = Registry("defence", DefenseEntry)


def _undefended(model: nn.Module) -> nn.Module:
    return model


_baseline = partial(DefenseEntry, group="baseline")
_published = partial(DefenseEntry, group="published")
_mixup = partial(DefenseEntry, group="mixup")

_SIGMAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12, 0.2, 0.3, 0.4)
_NOISES = [{"sigma": sigma} for sigma in _SIGMAS]
_ANGLES = [{"degrees": float(degrees)} for degrees in range(5, 55, 5)]
_SIDES = ((0.9, 1.0), (0.85, 1.0), (0.8, 1.0), (0.75, 0.95), (0.7, 0.95), (0.65, 0.9), (0.6, 0.85))
_SIZES = [{"size": size} for size in (*_SIDES, (0.5, 0.75))]  # of the side: they fit any image
_QUALITIES = [{"quality": quality} for quality in (95, 90, 85, 75, 60, 50, 40, 30, 20, 10)]
_BITS = [{"bits": bits} for bits in range(7, 0, -1)]
_BLURS = [{"sigma": sigma} for sigma in (0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0)]
_SHRUNK = [{"size": size} for size in (0.9, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3)]
_GUO = ((0.1, 0.01), (0.2, 0.02), (0.3, 0.03), (0.5, 0.03), (0.5, 0.06), (0.7, 0.06))
_DROPS = [{"drop": drop, "weight": weight} for drop, weight in _GUO]
_BARRAGES = [{"transforms": count} for count in (1, 2, 3, 4, 5, 6, 8, 10)]
_SPREADS = [{"lam": {"beta": [a, 1]}} for a in (16, 8, 4, 3, 2, 1)]
_RATIOS = [{"lam": lam / 20} for lam in range(18, 5, -1)]
_PAIRS = [
    {"lam_detect": 0.5, "lam_defend": lam, "threshold": threshold}
    for lam in (0.6, 0.5, 0.4)
    for threshold in (0.2, 0.1, 0.0)
]

DEFENSES.add(DefenseEntry("none", _undefended, random=False, group="none", title="no defence"))
DEFENSES.add(_baseline("gaussian", GaussianNoise, title="Gaussian noise", grid=_NOISES))
DEFENSES.add(_baseline("rotation", RandomRotation, title="random rotation", grid=_ANGLES))
DEFENSES.add(_baseline("resize-pad", ResizePad, title="Xie et al.", grid=_SIZES))
DEFENSES.add(_baseline("crop-resize", CropResize, title="Guo et al.", grid=_SIZES))
for _name, _factory, _title, _grid in (
    ("gaussian", published.published_noise, "Gaussian noise", [{"sigma": 2 * s} for s in _SIGMAS]),
    ("rotation", published.PublishedRotation, "random rotation", _ANGLES),
    ("resize-pad", published.PublishedResizePad, "Xie et al.", _SIZES),
    ("crop-resize", published.PublishedCropResize, "Guo et al.", _SIZES),
):
    DEFENSES.add(
        _published(f"{_name}-published", _factory, title=f"{_title} (published code)", grid=_grid)
    )
_fixed = partial(_baseline, random=False)
_control = partial(DefenseEntry, group="control", random=False)
DEFENSES.add(_fixed("jpeg", JpegCompression, title="JPEG", grid=_QUALITIES))
DEFENSES.add(_fixed("bit-depth", BitDepthReduction, title="bit depth", grid=_BITS))
DEFENSES.add(_control("blur", GaussianBlur, title="Gaussian blur", grid=_BLURS))
DEFENSES.add(_control("resize", Resize, title="resize down and up", grid=_SHRUNK))
DEFENSES.add(
    _baseline("total-variation", TotalVariationMinimization, title="total variation", grid=_DROPS)
)
DEFENSES.add(_baseline("bart", BarrageOfTransforms, title="BaRT", grid=_BARRAGES))
DEFENSES.add(_baseline("smoothing", RandomizedSmoothing, title="smoothing", grid=_NOISES))
DEFENSES.add(_baseline("dip", DataInterpolatingPrediction, title="DIP", grid=_SPREADS))
DEFENSES.add(_mixup("mi-ol", MixupInference, {"labels": "other"}, title="MI-OL", grid=_RATIOS))
DEFENSES.add(_mixup("mi-pl", MixupInference, {"labels": "predicted"}, title="MI-PL", grid=_RATIOS))
_combined = partial(_mixup, costliest={"threshold": -1.0})  # everything is detected
DEFENSES.add(_combined("mi-combined", CombinedInference, title="MI-Combined", grid=_PAIRS))


def settings_of(kind: str) -> set[str]:
    """The names of the settings that a defence takes.

    >>> sorted(settings_of("gaussian"))
    ['chunk', 'clip', 'draws', 'engine', 'fresh', 'seed', 'sigma']
    """
    return DEFENSES[kind].settings


def group_of(kind: str) -> Group:
    """The group of a defence by its name, such as one in results; "user" if it is not loaded."""
    return DEFENSES[kind].group if kind in DEFENSES else "user"


def make_defense(
    kind: str, model: nn.Module, pool: Pool | None = None, **settings: Any
) -> nn.Module:
    """Wrap ``model`` in the defence of this name; "none" gives the model back.

    Mixing ratios may be written as in TOML: ``{"uniform": [0.4, 0.6]}``, ``{"beta": [2, 2]}``.
    ``Options`` (draws, seed, ...) are passed to the defences that take them.
    """
    return DEFENSES[kind].build(model, pool, **settings)


def from_toml(value: Any) -> Any:
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
