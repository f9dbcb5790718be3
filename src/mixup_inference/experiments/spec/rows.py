"""What a spec says of the attack, the rows of the table and the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from mixup_inference.attacks import Precision
from mixup_inference.defenses import DEFENSES, get_preset, make_defense, settings_of
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError
from mixup_inference.evaluation.grid_search import grid_of
from mixup_inference.experiments.spec import fields
from mixup_inference.experiments.spec.fields import Count, NotNegative, Positive, Table, Title
from mixup_inference.pool import Pool
from mixup_inference.validation import check_number

LAMS = tuple(tenth / 10 for tenth in range(1, 10))


class AttackSpec(Table):
    """The oblivious attack: PGD on the undefended model.

    ``precision``: of its passes, and of those of the attacks of [adaptive]; what they find is
    judged in float32, or by the ``engine``.
    """

    eps: Positive
    step: Positive
    norm: Literal["linf", "l2"] = "linf"
    steps: Annotated[tuple[Count, ...], Field(min_length=1)] = (10, 50, 200)
    modes: Annotated[tuple[Literal["untargeted", "targeted"], ...], Field(min_length=1)] = (
        "untargeted",
        "targeted",
    )
    labels: Literal["true", "predicted"] = "true"
    precision: Precision = "32-true"

    @property
    def identity(self) -> dict[str, Any]:
        """What determines its examples, but for the mode; a precision that is said."""
        usual = {"precision"} if self.precision == "32-true" else set()
        return self.model_dump(mode="json", exclude={"modes"} | usual)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(steps))

    @model_validator(mode="after")
    def _no_duplicates(self) -> AttackSpec:
        fields.check_different(self.steps, "steps has duplicates; saw {} twice.")
        fields.check_different(self.modes, "modes has duplicates; saw {} twice.")
        return self


class RowSpec(fields.OpenTable):
    """One row of the table: a model and a defence; further keys are the defence's settings.

    ``preset`` names a row of the paper's parameter tables in their stead. In a spec, ``model`` may
    name several: see ``for_each_model``.
    """

    title: Title
    model: str
    defense: str = "none"
    group: Title = ""

    @model_validator(mode="before")
    @classmethod
    def _known_settings(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key in ("preset", "defense"):
                if not isinstance(value.get(key, ""), str):
                    raise InputError(f"{key} must be a name; saw {value[key]!r}.")
            if "preset" in value:
                value = _with_preset(value)
            defense = value.get("defense", "none")
            common = {"seed", "fresh", "draws"}
            known = (settings_of(defense) - common) | cls.model_fields.keys()
            for key in value.keys() & common:
                raise InputError(f"{key} belongs to the whole experiment, not to a row.")
            fields.check_known(f"key of a row with the defence {defense!r}:", value, known)
        return value

    @model_validator(mode="after")
    def _valid(self) -> RowSpec:
        if DEFENSES[self.defense].group != "user":  # those may look at the model
            pool = Pool(torch.zeros(2, 1, 64, 64), torch.tensor([0, 1]))
            make_defense(self.defense, nn.Identity(), pool, **self.settings)
        return self


def for_each_model(rows: Any, models: Iterable[str]) -> Any:
    """Write out the rows that name several models: a list of them, or "*" for all.

    Each becomes one row for each model, in the model's group; ``{model}`` in its title stands for
    the model's name. Without a title it is called after the model and the defence. If such rows
    follow each other, those of a model come together.

    >>> rows = [{"model": "*"}, {"model": "*", "defense": "mi-ol", "lam": 0.5}]
    >>> [row["title"] for row in for_each_model(rows, ["erm", "mixup"])]
    ['erm', 'erm + MI-OL', 'mixup', 'mixup + MI-OL']
    """
    if not isinstance(rows, list | tuple):
        return rows

    def named(row: Any) -> list[str] | None:
        model = row.get("model") if isinstance(row, Mapping) else None
        several = list(models) if model == "*" else model
        return several if isinstance(several, list) else None

    out: list[Any] = []
    for several, together in groupby(rows, key=named):
        alike = list(together)
        out += alike if several is None else [_of(m, row) for m in several for row in alike]
    return out


def _of(model: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of several models, for one of them."""
    defense = str(row.get("defense", "none"))
    title = "{model}" if defense == "none" else f"{{model}} + {DEFENSES[defense].title}"
    named = str(row.get("title", title)).replace("{model}", str(model))
    return {"group": model, **row, "model": model, "title": named}


class FiguresSpec(Table):
    """What is measured beside the table, for the figures and the theory page of the report.

    ``models``: of these (all in the table by default). ``lams``: over these mixing ratios.
    ``points``: the theory is measured on so many test points. ``pairs``: linearity on so many
    pairs of them. ``defenses``: those whose settings are traded off on the tuning points.
    ``gallery``: so many examples are shown. ``scores``: detection scores of your own, measured
    beside those of the registry.
    """

    models: tuple[str, ...] = ()
    lams: Annotated[tuple[float, ...], Field(min_length=1)] = LAMS
    points: Count = 200
    pairs: Annotated[int, Field(ge=2)] = 500
    defenses: tuple[str, ...] = ("mi-ol", "gaussian", "rotation", "resize-pad", "crop-resize")
    gallery: NotNegative = 6
    scores: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _valid(self) -> FiguresSpec:
        for lam in self.lams:
            check_number(lam, what="a ratio of lams", least=0, most=1)
        for defense in self.defenses:
            grid_of(defense)
        for score in self.scores:
            SCORES[score]
        return self


def _with_preset(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the defence and the settings of its preset written out."""
    preset = get_preset(row["preset"])
    rest = {key: value for key, value in row.items() if key != "preset"}
    taken = [key for key in ("defense", *preset.settings) if key in rest]
    if taken:
        raise InputError(f"the preset sets {', '.join(taken)}; take that out, or the preset.")
    return {**rest, "defense": preset.kind, **preset.settings}
