"""Experiment specs: TOML files, checked before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import nn

from mixup_inference.attacks import check_peer, get_attack
from mixup_inference.checks import check_int, check_number
from mixup_inference.datasets import check_name
from mixup_inference.defenses import get_preset, make_defense, settings_of
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.evaluation.spec_adaptive import AdaptiveSpec, KnowingSpec
from mixup_inference.evaluation.spec_table import (
    Count,
    Name,
    NotNegative,
    Positive,
    Table,
    Title,
)
from mixup_inference.evaluation.tuning import grid_of
from mixup_inference.files import is_file, parse_toml, read_text
from mixup_inference.models import MODELS
from mixup_inference.models.engines import check_engine
from mixup_inference.pool import Pool
from mixup_inference.training import Recipe
from mixup_inference.training.recipe import Precision

#: Bytes; no spec is larger.
LARGEST = 1_000_000
LAMS = tuple(tenth / 10 for tenth in range(1, 10))


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


class AttackSpec(Table):
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

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(steps))

    @model_validator(mode="after")
    def _no_duplicates(self) -> AttackSpec:
        for name in ("steps", "modes"):
            values = list(getattr(self, name))
            if len(set(values)) < len(values):
                raise InputError(f"{name} has duplicates; saw {values}.")
        return self


class RowSpec(Table):
    """One row of the table: a model and a defence; further keys are the defence's settings.

    ``preset`` names a row of the paper's parameter tables in their stead.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    title: Title
    model: str
    defense: str = "none"
    group: Title = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The defence's settings."""
        return dict(self.model_extra or {})

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


class FiguresSpec(Table):
    """What is measured beside the table, for the figures and the theory page of the report.

    ``models``: of these (all in the table by default). ``lams``: over these mixing ratios.
    ``points``: the theory is measured on so many test points. ``pairs``: linearity on so many
    pairs of them. ``defenses``: those whose settings are traded off on the tuning points.
    ``gallery``: so many examples are shown.
    """

    models: tuple[str, ...] = ()
    lams: Annotated[tuple[float, ...], Field(min_length=1)] = LAMS
    points: Count = 200
    pairs: Annotated[int, Field(ge=2)] = 500
    defenses: tuple[str, ...] = ("mi-ol", "gaussian", "rotation", "resize-pad", "crop-resize")
    gallery: NotNegative = 6

    @model_validator(mode="after")
    def _valid(self) -> FiguresSpec:
        for lam in self.lams:
            check_number(lam, what="a ratio of lams", least=0, most=1)
        for defense in self.defenses:
            grid_of(defense)
        return self


def _with_preset(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the defence and the settings of its preset written out."""
    preset = get_preset(row["preset"])
    rest = {key: value for key, value in row.items() if key != "preset"}
    taken = [key for key in ("defense", *preset.settings) if key in rest]
    if taken:
        raise InputError(f"the preset sets {', '.join(taken)}; take that out, or the preset.")
    return {**rest, "defense": preset.kind, **preset.settings}


class Spec(Table):
    """A whole experiment: train, attack, defend, measure, report.

    ``engine``: what computes the models inside defences where no gradient is needed.
    """

    name: Name
    title: Title
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    draws: Count = 30
    batch_size: Count = 250
    engine: str = "eager"
    data: DataSpec
    network: NetworkSpec | None = None
    training: TrainingSpec = TrainingSpec()
    models: Annotated[dict[Name, ModelSpec], Field(min_length=1)]
    attack: AttackSpec | None = None
    figures: FiguresSpec | None = None
    adaptive: AdaptiveSpec | None = None
    rows: Annotated[tuple[RowSpec, ...], Field(min_length=1)]

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, engine: str) -> str:
        return check_engine(engine)

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        for name, model in self.models.items():
            network = self.network_of(name)
            if network is None and model.weights is None:
                raise InputError(f"'network' is missing for the model {name}; add it.")
            foreign = network is not None and network.is_foreign
            if not (self.is_trained(name) or model.weights or foreign):
                raise InputError(f"'models.{name}.objective' is missing; add it, or weights.")
        for row in self.rows:
            if row.model not in self.models:
                raise unknown_name(f"model in the row {row.title!r}:", row.model, self.models)
        for name in self.figures.models if self.figures else ():
            if name not in self.models:
                raise unknown_name("model in figures:", name, self.models)
        if self.figures is not None and (self.attack is None or self.data.used < 2):
            raise InputError("'figures' needs an attack and at least two test points.")
        if self.adaptive is not None:
            self._check_adaptive(self.adaptive)
        titles = [row.title for row in self.rows]
        for title in titles:
            if titles.count(title) > 1:
                raise InputError(f"two rows have the title {title!r}; titles must differ.")
        return self

    def _check_adaptive(self, adaptive: AdaptiveSpec) -> None:
        if self.attack is None:
            raise InputError("'adaptive' needs an attack, for its eps and norm.")
        for attack in adaptive.attacks:
            if get_attack(attack.attack).group == "peer":
                check_peer(attack.attack, norm=self.attack.norm)
        titles = [row.title for row in self.rows]
        for title in adaptive.rows:
            if title not in titles:
                raise unknown_name("row in adaptive:", title, titles)
        named = [name for attack in adaptive.attacks for name in attack.surrogates]
        for name in (*adaptive.detectors, *named):
            if name not in self.models:
                raise unknown_name("model in adaptive:", name, self.models)
        if adaptive.detectors and self.data.calibration < 20:
            raise InputError("detectors need at least 20 calibration points in [data].")

    @property
    def used_models(self) -> list[str]:
        """The models that the table has."""
        return [name for name in self.models if any(row.model == name for row in self.rows)]

    @property
    def needed_models(self) -> list[str]:
        """The models that the table, the figures or the adaptive attacks have."""
        used = {*self.used_models, *self.figure_models}
        if self.adaptive is not None:
            used |= set(self.adaptive.detectors)
            for attack in self.adaptive.attacks:
                used |= set(self.surrogates(attack))
        return [name for name in self.models if name in used]

    @property
    def figure_models(self) -> list[str]:
        """The models that the figures show."""
        if self.figures is None:
            return []
        return list(self.figures.models) or self.used_models

    def surrogates(self, attack: KnowingSpec, model: str | None = None) -> list[str]:
        """The models that a transfer attack on a model is crafted on: all others by default."""
        if attack.attack != "transfer":
            return []
        return [name for name in attack.surrogates or self.models if name != model]

    def attack_applies(self, attack: KnowingSpec, row: RowSpec) -> bool:
        """Whether an attack that knows the defence makes sense for a row."""
        if attack.attack == "transfer" and not self.surrogates(attack, row.model):
            return False
        if attack.attack == "official-adaptive" and self.attack and self.attack.norm != "linf":
            return False
        return get_attack(attack.attack).applies_to(row.defense)

    def network_of(self, model: str) -> NetworkSpec | None:
        """A model's own network, or else the common one; None when its weights bring it."""
        return self.models[model].network or self.network

    def is_trained(self, model: str) -> bool:
        """Whether a model is trained here, and not brought along."""
        objective = self.models[model].objective or self.training.objective
        return self.models[model].weights is None and objective is not None

    def recipe(self, model: str) -> Recipe:
        """The training of one model: its own settings over the common ones."""
        common = self.training.model_dump(exclude_none=True)
        return Recipe(**(common | self.models[model].training), seed=self.seed_of(model))

    def seed_of(self, model: str) -> int:
        """The seed of a model's start and training."""
        own = self.models[model].seed
        return self.seed if own is None else own

    def on_points(self, count: int) -> Spec:
        """The same experiment on the first so many of its test points."""
        if check_int(count, what="the number of points", least=1) > self.data.test:
            raise InputError(f"{self.name} has {self.data.test} test points, not {count}.")
        document = self.model_dump(exclude_none=True)
        document |= {"name": f"{self.name}-{count}", "title": f"{self.title}, {count} points"}
        document["data"]["first"] = count
        return check_spec(document, allow_code=True)

    def in_precision(self, precision: str) -> Spec:
        """The same experiment with all its models trained in this precision."""
        document = self.model_dump(exclude_none=True)
        for name, model in document["models"].items():
            if self.is_trained(name) and precision != (self.recipe(name).precision or "32-true"):
                model["precision"] = precision
        return Spec.model_validate(document)

    def with_engine(self, engine: str) -> Spec:
        """The same experiment with another engine."""
        return self.model_copy(update={"engine": check_engine(engine)})

    def smoke(self) -> Spec:
        """The same experiment cut down to see it run from end to end.

        32 test points; one step of training on 32 images, of the attacks and of those inside
        adversarial training; two draws.
        """
        one_step = {"epochs": 1, "max_steps": 1, "batch_size": 32, "steps": 1}
        document = self.model_dump(exclude_none=True)
        document |= {"name": f"{self.name}-smoke", "title": f"{self.title} (smoke)", "draws": 2}
        document["batch_size"] = 32
        document["data"] |= {"test": min(32, self.data.test), "tuning": 0, "calibration": 0}
        for name, model in document["models"].items():
            document["models"][name] = model | (one_step if self.is_trained(name) else {})
        if self.attack is not None:
            document["attack"]["steps"] = (1,)
        if self.adaptive is not None:
            document["adaptive"] |= {"points": 8, "repeats": 2, "checks": 0, "gallery": 1}
            document["adaptive"] |= {"detectors": (), "samples": self.adaptive.samples[:1]}
            document["adaptive"] |= {"figure_points": 4, "figure_steps": 1}
            document["adaptive"]["attacks"] = [
                attack.smoke().model_dump() for attack in self.adaptive.attacks
            ]
        if self.figures is not None:
            document["figures"] |= {"points": 32, "pairs": 16, "lams": (0.5,), "gallery": 2}
        return Spec.model_validate(document)


def shipped_specs() -> dict[str, Path]:
    """The specs inside the package, by name."""
    folder = Path(str(resources.files("mixup_inference"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_spec(name_or_path: str, *, allow_code: bool = False) -> Spec:
    """A shipped spec by name, or any spec by the path of its TOML file.

    A spec that names Python code to run (``package.module:factory`` as a network) is refused
    unless ``allow_code`` says that it has been read and is trusted.
    """
    shipped = shipped_specs()
    if name_or_path in shipped:
        path = shipped[name_or_path]
    elif name_or_path.endswith(".toml") or is_file(Path(name_or_path)):
        path = Path(name_or_path)
    else:
        raise unknown_name("experiment", name_or_path, shipped)
    text = read_text(path, what="the spec", most=LARGEST)
    return parse_spec(text, source=str(name_or_path), allow_code=allow_code)


def parse_spec(text: str, *, source: str = "spec", allow_code: bool = False) -> Spec:
    """Check a spec's text; every problem is one line that says where and what."""
    return check_spec(parse_toml(text, source), source=source, allow_code=allow_code)


def check_spec(
    document: Mapping[str, Any], *, source: str = "spec", allow_code: bool = False
) -> Spec:
    """Check a spec that is already parsed."""
    try:
        spec = Spec.model_validate(document)
    except ValidationError as error:
        problems = error.errors()
        # An item that is refused is also missing from its list, which is not worth a line.
        first = [p for p in problems if p["type"] != "too_short"] or problems
        lines = [_in_words(problem) for problem in first]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply.") from None
    if not allow_code:
        _refuse_code(spec, source)
    return spec


def _refuse_code(spec: Spec, source: str) -> None:
    """Refuse a spec that names Python code, which running the spec would run."""
    networks = (spec.network, *(model.network for model in spec.models.values()))
    for network in networks:
        if network is not None and network.is_foreign:
            raise InputError(
                f"{source}: the network {network.name!r} is Python code, and this spec would run "
                "it. If you know and trust that code, allow it with --allow-code "
                "(allow_code=True in Python)."
            )


def _in_words(problem: Any) -> str:
    """One of pydantic's errors as a sentence."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{where!r} is missing; add it."
    cause = problem.get("ctx", {}).get("error")
    what = str(cause) if cause is not None else f"{problem['msg']}; saw {_short(problem['input'])}."
    return f"{where}: {what}" if where else what


def _short(value: Any) -> str:
    """A value as it was written, but not pages of it."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested very deeply"
    return text if len(text) <= 300 else f"{text[:300]}..."
