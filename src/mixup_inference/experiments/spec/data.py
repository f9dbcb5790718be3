"""What a spec says of data and models."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from mixup_inference.datasets import check_name
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec import fields
from mixup_inference.experiments.spec.fields import Count, NotNegative, OpenTable, Table
from mixup_inference.models import NETWORKS
from mixup_inference.registry import is_code
from mixup_inference.training import Recipe


class DataSpec(Table):
    """Which data set, and how many points for what; the rest is for training and the pool.

    ``pool``: "test" has defences draw from the whole test set, as the paper's published code does;
    the test points are among it, and their labels leak into the defence. ``first``: only so many of
    the test points are used.
    """

    name: str
    test: Count
    tuning: NotNegative = 0
    calibration: NotNegative = 0
    size: Count | None = None
    channels: Literal[1, 3] | None = None
    pool: Literal["train", "test"] = "train"
    first: Count | None = None

    @property
    def used(self) -> int:
        """How many test points are used."""
        return self.test if self.first is None else min(self.first, self.test)

    @model_validator(mode="after")
    def _known_name(self) -> DataSpec:
        check_name(self.name)
        return self


class NetworkSpec(OpenTable):
    """Which network; further keys are passed to it.

    The name is one of the registry's, or ``package.module:factory``, a function of the user's.
    """

    name: str
    classes: Count | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it is the user's own."""
        return is_code(self.name)

    @model_validator(mode="after")
    def _known_name(self) -> NetworkSpec:
        if not self.is_foreign:
            known = NETWORKS[self.name].settings
            fields.check_known(f"setting of {self.name}", self.settings, known)
        return self


#: What a spec may say of a training; its seed has a place of its own.
SETTINGS = tuple(field.name for field in dataclasses.fields(Recipe) if field.name != "seed")


def check_training(settings: dict[str, Any]) -> dict[str, Any]:
    """Some settings of a ``Recipe``, checked and converted as it does."""
    fields.check_known("key", settings, SETTINGS)
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    recipe = Recipe(**given)
    return {name: getattr(recipe, name) for name in given}


TrainingSettings = Annotated[dict[str, Any], AfterValidator(check_training)]


class ModelSpec(OpenTable):
    """A model: the weights that it is brought with, or further keys that say how it is trained.

    ``seed``: of its start and its training, if it is to be another than the experiment's.
    """

    weights: str | None = None
    network: NetworkSpec | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        own = {key: value[key] for key in value if key not in cls.model_fields}
        fields.check_known("key", own, (*cls.model_fields, *SETTINGS))
        return {key: value[key] for key in value if key not in own} | check_training(own)

    @model_validator(mode="after")
    def _trained_or_brought(self) -> ModelSpec:
        if self.weights is not None and self.settings:
            names = ", ".join(self.settings)
            raise InputError(f"a model with weights is not trained; take out {names}.")
        return self
