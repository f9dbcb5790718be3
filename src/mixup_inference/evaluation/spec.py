"""Experiment specs: TOML files, checked before anything is computed."""

from __future__ import annotations

import inspect
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from mixup_inference.datasets import DATASETS
from mixup_inference.defenses import make_defense, settings_of
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models import MODELS
from mixup_inference.pool import Pool
from mixup_inference.training import Recipe

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class _Table(BaseModel):
    """A TOML table in which an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            for key in value.keys() - cls.model_fields.keys():
                raise unknown_name("key", key, cls.model_fields)
        return value


class DataSpec(_Table):
    """Which data set, and how many points for what; the rest is for training and the pool."""

    name: str
    test: Count
    tuning: NotNegative = 0
    calibration: NotNegative = 0

    @model_validator(mode="after")
    def _known_name(self) -> DataSpec:
        if self.name not in DATASETS:
            raise unknown_name("data set", self.name, DATASETS)
        return self


class NetworkSpec(_Table):
    """Which network; further keys are passed to it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="after")
    def _known_name(self) -> NetworkSpec:
        if self.name not in MODELS:
            raise unknown_name("network", self.name, MODELS)
        known = set(inspect.signature(MODELS[self.name]).parameters) - {"classes", "channels"}
        for key in (self.model_extra or {}).keys() - known:
            raise unknown_name(f"setting of {self.name}", key, known)
        return self


class TrainingSpec(_Table):
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
    eps: float | None = None
    step: float | None = None
    steps: int | None = None
    attack_labels: Literal["true", "predicted"] | None = None
    adv_ratio: float | None = None
    flip: bool | None = None
    crop_padding: int | None = None

    @model_validator(mode="after")
    def _valid(self) -> TrainingSpec:
        Recipe(**self.model_dump(exclude_none=True))
        return self


class AttackSpec(_Table):
    """The oblivious attack: PGD on the undefended model."""

    eps: Positive
    step: Positive
    norm: Literal["linf", "l2"] = "linf"
    steps: Annotated[tuple[Count, ...], Field(min_length=1)] = (10, 50, 200)
    modes: Annotated[tuple[Literal["untargeted", "targeted"], ...], Field(min_length=1)] = (
        "untargeted",
        "targeted",
    )
    labels: Literal["true", "predicted"] = "true"

    @model_validator(mode="after")
    def _no_duplicates(self) -> AttackSpec:
        for name in ("steps", "modes"):
            values = list(getattr(self, name))
            if len(set(values)) < len(values):
                raise InputError(f"{name} has duplicates; saw {values}.")
        return self


class RowSpec(_Table):
    """One row of the table: a model and a defence; further keys are the defence's settings."""

    model_config = ConfigDict(extra="allow", frozen=True)
    title: str
    model: str
    defense: str = "none"
    group: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The defence's settings."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _known_settings(cls, value: Any) -> Any:
        if isinstance(value, dict):
            defense = value.get("defense", "none")
            common = {"seed", "fresh", "draws"}
            known = (settings_of(defense) - common) | cls.model_fields.keys()
            for key in value.keys() - known:
                if key in common:
                    raise InputError(f"{key} belongs to the whole experiment, not to a row.")
                raise unknown_name(f"key of a row with the defence {defense!r}:", key, known)
        return value

    @model_validator(mode="after")
    def _valid(self) -> RowSpec:
        pool = Pool(torch.zeros(2, 1, 64, 64), torch.tensor([0, 1]))
        make_defense(self.defense, nn.Identity(), pool, **self.settings)
        return self


class Spec(_Table):
    """A whole experiment: train, attack, defend, measure, report."""

    name: Name
    title: str
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    draws: Count = 30
    batch_size: Count = 250
    data: DataSpec
    network: NetworkSpec
    training: TrainingSpec = TrainingSpec()
    models: Annotated[dict[Name, TrainingSpec], Field(min_length=1)]
    attack: AttackSpec
    rows: Annotated[tuple[RowSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        for name, training in self.models.items():
            if training.objective is None and self.training.objective is None:
                raise InputError(f"'models.{name}.objective' is missing; add it.")
        for row in self.rows:
            if row.model not in self.models:
                raise unknown_name(f"model in the row {row.title!r}:", row.model, self.models)
        titles = [row.title for row in self.rows]
        for title in titles:
            if titles.count(title) > 1:
                raise InputError(f"two rows have the title {title!r}; titles must differ.")
        return self

    def recipe(self, model: str) -> Recipe:
        """The training of one model: its own settings over the common ones."""
        common = self.training.model_dump(exclude_none=True)
        own = self.models[model].model_dump(exclude_none=True)
        return Recipe(**(common | own), seed=self.seed)


def shipped_specs() -> dict[str, Path]:
    """The specs inside the package, by name."""
    folder = Path(str(resources.files("mixup_inference"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_spec(name_or_path: str) -> Spec:
    """A shipped spec by name, or any spec by the path of its TOML file."""
    shipped = shipped_specs()
    if name_or_path in shipped:
        path = shipped[name_or_path]
    elif name_or_path.endswith(".toml") or Path(name_or_path).is_file():
        path = Path(name_or_path)
    else:
        raise unknown_name("experiment", name_or_path, shipped)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the spec {path}: {error}.") from None
    return parse_spec(text, source=str(name_or_path))


def parse_spec(text: str, *, source: str = "spec") -> Spec:
    """Check a spec's text; every problem is one line that says where and what."""
    try:
        return Spec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not valid TOML: {error}.") from None
    except ValidationError as error:
        lines = [_in_words(problem) for problem in error.errors()]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


def _in_words(problem: Any) -> str:
    """One of pydantic's errors as a sentence."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{where!r} is missing; add it."
    cause = problem.get("ctx", {}).get("error")
    what = str(cause) if cause is not None else f"{problem['msg']}; saw {problem['input']!r}."
    return f"{where}: {what}" if where else what
