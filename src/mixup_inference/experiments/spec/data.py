"""What a spec says of data and models."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from mixup_inference.datasets import check_name
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.experiments.spec.fields import Count, NotNegative, Table
from mixup_inference.models import MODELS
from mixup_inference.training import Recipe
from mixup_inference.training.recipe import MixupRatio, Precision


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


class NetworkSpec(Table):
    """Which network; further keys are passed to it.

    The name is one of the registry's, or ``package.module:factory``, a function of the user's.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    classes: Count | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it is the user's own."""
        return ":" in self.name

    @model_validator(mode="after")
    def _known_name(self) -> NetworkSpec:
        if self.is_foreign:
            return self
        if self.name not in MODELS:
            raise unknown_name("network", self.name, MODELS)
        known = set(inspect.signature(MODELS[self.name]).parameters) - {"classes", "channels"}
        for key in (self.model_extra or {}).keys() - known:
            raise unknown_name(f"setting of {self.name}", key, known)
        return self


class TrainingSpec(Table):
    """Settings of a training; what is left out has the defaults of ``Recipe``."""

    objective: Literal["erm", "mixup", "at", "iat"] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: Literal["step", "one-cycle"] | None = None
    milestones: tuple[float, ...] | None = None
    warmup: float | None = None
    alpha: float | None = None
    ratio: MixupRatio | None = None
    lam: float | None = None
    eps: float | None = None
    step: float | None = None
    steps: int | None = None
    attack_labels: Literal["true", "predicted"] | None = None
    adv_ratio: float | None = None
    flip: bool | None = None
    crop_padding: int | None = None
    max_steps: int | None = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _valid(self) -> TrainingSpec:
        Recipe(**self.model_dump(exclude_none=True))
        return self


class ModelSpec(TrainingSpec):
    """A model: how it is trained, or the weights that it is brought with.

    ``seed``: of its start and its training, if it is to be another than the experiment's.
    """

    weights: str | None = None
    network: NetworkSpec | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @property
    def training(self) -> dict[str, Any]:
        """The settings of its training that are its own."""
        return self.model_dump(exclude_none=True, exclude={"weights", "network", "seed"})

    @model_validator(mode="after")
    def _valid(self) -> ModelSpec:
        Recipe(**self.training)
        if self.weights is not None and self.training:
            names = ", ".join(self.training)
            raise InputError(f"a model with weights is not trained; take out {names}.")
        return self
