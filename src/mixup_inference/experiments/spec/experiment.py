"""A whole experiment, checked before anything is computed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from mixup_inference.attacks import check_peer, get_attack
from mixup_inference.errors import InputError
from mixup_inference.evaluation.callback import Column
from mixup_inference.experiments.spec import fields
from mixup_inference.experiments.spec.attacks import AdaptiveAttackSpec, AdaptiveSpec
from mixup_inference.experiments.spec.data import (
    DataSpec,
    ModelSpec,
    NetworkSpec,
    TrainingSettings,
)
from mixup_inference.experiments.spec.fields import Count, Name, Table, Title
from mixup_inference.experiments.spec.rows import AttackSpec, FiguresSpec, RowSpec, for_each_model
from mixup_inference.models.engines import check_engine
from mixup_inference.training import Recipe


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
    training: TrainingSettings = Field(default_factory=dict)
    models: Annotated[dict[Name, ModelSpec], Field(min_length=1)]
    attack: AttackSpec | None = None
    figures: FiguresSpec | None = None
    adaptive: AdaptiveSpec | None = None
    rows: Annotated[tuple[RowSpec, ...], Field(min_length=1)]

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, engine: str) -> str:
        return check_engine(engine)

    @model_validator(mode="before")
    @classmethod
    def _write_out_rows(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("models"), dict) and "rows" in value:
            return value | {"rows": for_each_model(value["rows"], value["models"])}
        return value

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
            fields.check_known(f"model in the row {row.title!r}:", [row.model], self.models)
        shown = self.figures.models if self.figures else ()
        fields.check_known("model in figures:", shown, self.models)
        if self.figures is not None and (self.attack is None or self.data.used < 2):
            raise InputError("'figures' needs an attack and at least two test points.")
        if self.adaptive is not None:
            self._check_adaptive(self.adaptive)
        titles = [row.title for row in self.rows]
        fields.check_different(titles, "two rows have the title {}; titles must differ.")
        return self

    def _check_adaptive(self, adaptive: AdaptiveSpec) -> None:
        if self.attack is None:
            raise InputError("'adaptive' needs an attack, for its eps and norm.")
        for attack in adaptive.attacks:
            if get_attack(attack.attack).is_external:
                check_peer(attack.attack, norm=self.attack.norm)
        fields.check_known("row in adaptive:", adaptive.rows, [row.title for row in self.rows])
        named = [name for attack in adaptive.attacks for name in attack.surrogates]
        fields.check_known("model in adaptive:", (*adaptive.detectors, *named), self.models)
        if adaptive.detectors and self.data.calibration < 20:
            raise InputError("detectors need at least 20 calibration points in [data].")

    @property
    def columns(self) -> list[Column]:
        """The columns of the table, in order."""
        modes, steps = ((), ()) if self.attack is None else (self.attack.modes, self.attack.steps)
        return [Column("clean"), *(Column(mode, count) for mode in modes for count in steps)]

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

    def surrogates(self, attack: AdaptiveAttackSpec, model: str | None = None) -> list[str]:
        """The models that a transfer attack on a model is crafted on: all others by default."""
        if not get_attack(attack.attack).surrogates:
            return []
        return [name for name in attack.surrogates or self.models if name != model]

    def attack_applies(self, attack: AdaptiveAttackSpec, row: RowSpec) -> bool:
        """Whether an adaptive attack makes sense for a row."""
        entry = get_attack(attack.attack)
        if entry.surrogates and not self.surrogates(attack, row.model):
            return False
        if self.attack and self.attack.norm not in entry.norms:
            return False
        return entry.applies_to(row.defense)

    def network_of(self, model: str) -> NetworkSpec | None:
        """A model's own network, or else the common one; None when its weights bring it."""
        return self.models[model].network or self.network

    def is_trained(self, model: str) -> bool:
        """Whether a model is trained here, and not brought along."""
        settings = self.training | self.models[model].settings
        return self.models[model].weights is None and "objective" in settings

    def recipe(self, model: str) -> Recipe:
        """The training of one model: its own settings over the common ones."""
        settings = self.training | self.models[model].settings
        return Recipe(**settings, seed=self.seed_of(model))

    def seed_of(self, model: str) -> int:
        """The seed of a model's start and training."""
        own = self.models[model].seed
        return self.seed if own is None else own
