"""The options that every attack takes, and the settings of each, checked against its signature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from mixup_inference.attacks.query import Precision
from mixup_inference.attacks.threat_model import Norm, ThreatModel
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import check_int, check_number


class Range(NamedTuple):
    """Bounds of a setting, as an annotation of its type."""

    least: float
    most: float = math.inf


Natural = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """The options of every attack, all by keyword.

    eps: radius of the ball.
    norm: "linf" or "l2".
    targeted: go towards another class, drawn uniformly, once per point.
    targets: the classes to go towards instead of drawn ones; implies ``targeted``.
    repeats: how often success is evaluated, each time with fresh draws of the whole defence.
    seed: of starts, targets and the attack's draws, which belong to a point, not to a batch.
    index: the points' positions in their data set; 0, 1, 2, ... by default.
    batch_size: how many images pass through F at once: with K draws, so many / K points.
    precision: of the attack's own passes: "32-true", or "bf16-mixed" to compute in bfloat16 where
        that is nearly the same (see ``accelerate``). Success is evaluated in the defence's own.
    ranks: the processes that share the points, each of which calls the attack with all of them.
    progress: where to report.
    """

    eps: float = 8 / 255
    norm: Norm = "linf"
    targeted: bool = False
    targets: Tensor | None = None
    repeats: int = 5
    seed: int = 0
    index: Tensor | None = None
    batch_size: int = 256
    precision: Precision = "32-true"
    ranks: Ranks = ALONE
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        ThreatModel(self.norm, self.eps)
        for name, least in (("repeats", 1), ("seed", 0), ("batch_size", 1)):
            check_int(getattr(self, name), what=name, least=least)

    @property
    def threat_model(self) -> ThreatModel:
        """The set of images that the attack may send."""
        return ThreatModel(self.norm, self.eps)


OPTIONS = {field.name: field.default for field in fields(AttackOptions)}


def parse_options(options: Mapping[str, Any], settings: Iterable[str] = ()) -> AttackOptions:
    """Check the options of a call; an unknown one raises TypeError with the nearest name."""
    for name in options.keys() - OPTIONS.keys():
        raise TypeError(str(unknown_name("option", name, {*OPTIONS, *settings})))
    return AttackOptions(**options)


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of an attack with their defaults: keywords that are not options."""
    found = {}
    for p in inspect.signature(function).parameters.values():
        optional = p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty
        if (p.kind is p.KEYWORD_ONLY or optional) and p.name not in OPTIONS:
            found[p.name] = p.default
    return found


def check_types(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Check values against the types and ranges that a function declares."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # of a user's function: imported for type checkers only, partial
        return
    for name in settings.keys() & hints.keys():
        _check_value(name, settings[name], hints[name])


def _check_value(name: str, value: Any, hint: Any) -> None:
    """Check one value; types that no spec can write are left to the function."""
    union = get_origin(hint) in (Union, UnionType)
    kinds = get_args(hint) if union else (hint,)
    if value is None and NoneType in kinds:
        return
    kind, bounds = kinds[0], Range(-math.inf)
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise unknown_name(name, value, get_args(kind))
    if kind is bool and not isinstance(value, bool):
        raise InputError(f"{name} must be true or false; saw {value!r}.")
    if kind is int:
        check_int(value, what=name, least=int(max(bounds.least, -(2**63))))
    if kind is float:
        check_number(value, what=name, least=bounds.least, most=bounds.most)
