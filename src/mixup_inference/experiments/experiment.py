"""An experiment stage by stage: train, attack, measure. Every part is kept and never redone.

Each trained model, set of adversarial examples and table cell is in the store under a hash of
everything that determines it, and written in one piece. So a rerun recomputes only what
changed, and an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks import pgd
from mixup_inference.defenses import make_defense
from mixup_inference.draws import derive_seed
from mixup_inference.evaluation.callback import Column
from mixup_inference.evaluation.evaluate import answers
from mixup_inference.experiments.models import Trained
from mixup_inference.experiments.spec import RowSpec
from mixup_inference.metrics.accuracy import Accuracy
from mixup_inference.models.base import DummyClassifier
from mixup_inference.models.engines import engine_for
from mixup_inference.utils.io import hash_tensors


class Experiment(Trained):
    """A spec at work in a folder."""

    @cached_property
    def _defenses(self) -> dict[str, nn.Module]:
        return {}

    @cached_property
    def _right(self) -> dict[tuple[str, Column], Tensor]:
        return {}

    @cached_property
    def _examples(self) -> dict[tuple[str, str, str], dict[int, Tensor]]:
        return {}

    @property
    def columns(self) -> list[Column]:
        """The table's columns, in order."""
        attack = self.spec.attack
        modes, steps = ((), ()) if attack is None else (attack.modes, attack.steps)
        return [Column("clean"), *(Column(mode, count) for mode in modes for count in steps)]

    @cached_property
    def defense_identity(self) -> dict[str, str]:
        """What defences draw from and are computed with, where that is not the default."""
        said = {}
        if self.spec.data.pool != "train":
            said["pool"] = hash_tensors(self.pool.images, self.pool.labels)
        if self.spec.engine != "eager":
            said["engine"] = self.spec.engine
        return said

    def check(self) -> None:
        """Try every row's defence on one image, with a model that knows nothing if need be.

        So a setting that does not fit the images or the model, a class without training images, or
        an engine that is not installed is found before anything is trained or attacked.
        """
        some = torch.arange(min(64, len(self.points["train"])))
        images = self.points["train"].take(some).pixels.to(self.device)
        if self.spec.engine != "eager":
            for name in self.spec.used_models:
                trained = self.spec.is_trained(name)
                model = self.untrained(name).eval() if trained else self.model(name)
                engine_for(self.spec.engine, model.to(self.device), images)
        for row in self.spec.rows:
            trained = self.spec.is_trained(row.model)
            model = (
                DummyClassifier(self.pool.classes, slope=0) if trained else self.model(row.model)
            )
            defended = make_defense(row.defense, model, self.pool, **row.settings)
            with torch.no_grad():
                defended.to(self.device)(images[:1])

    # Attacking

    def examples_identity(self, name: str, mode: str, part: str = "test") -> dict[str, Any]:
        """Everything that determines a set of adversarial examples."""
        assert self.spec.attack is not None
        return {
            "model": self.model_identity(name),
            "attack": self.spec.attack.identity,
            "mode": mode,
            "batch_size": self.batch_size,
            "seed": self._attack_seed,
            "points": self.points_hash(part),
        }

    @property
    def _attack_seed(self) -> int:
        return derive_seed(self.spec.seed, "oblivious attack")

    def examples(self, name: str, mode: str, part: str = "test") -> dict[int, Tensor]:
        """Adversarial examples of the points of a part for a model, by number of steps."""
        if (name, mode, part) not in self._examples:
            self.model(name)
            assert self.spec.attack is not None
            which = "" if part == "test" else f", {part} points"
            tensors, _ = self.tensors(
                f"{name}-{mode}",
                f"{mode} attack on {name}{which}",
                self.examples_identity(name, mode, part),
                lambda: (self._attack(name, mode, part), {}),
            )
            self._examples[name, mode, part] = {
                steps: tensors[f"PGD-{steps}"] for steps in self.spec.attack.steps
            }
        return self._examples[name, mode, part]

    def _attack(self, name: str, mode: str, part: str) -> dict[str, Tensor]:
        attack, points = self.spec.attack, self.points[part]
        assert attack is not None
        examples = pgd(
            self.model(name),
            points.pixels.to(self.device),
            points.labels,
            eps=attack.eps,
            step=attack.step,
            steps=max(attack.steps),
            norm=attack.norm,
            targeted=mode == "targeted",
            labels=attack.labels,
            seed=self._attack_seed,
            index=points.index,
            snapshots=attack.steps,
            batch_size=self.batch_size,
            precision=attack.precision,
            ranks=self.ranks,
            progress=self.progress,
        )
        return {f"PGD-{steps}": tensor.cpu() for steps, tensor in examples.items()}

    def mend(self) -> None:
        """Make damaged examples again, even when all that was made from them is there."""
        modes = self.spec.attack.modes if self.spec.attack else ()
        for key in product(self.spec.needed_models, modes, ("test", "tuning")):
            name, mode, _ = key
            if key in self._examples:
                continue
            path = self.store.path("attacks", self.examples_identity(*key), f"{name}-{mode}")
            if self.ranks.first(partial(self.store.is_damaged, path)):
                self.examples(*key)

    # Measuring

    def cells(self) -> Iterator[tuple[RowSpec, Column, Accuracy]]:
        """The table, cell by cell."""
        for row in self.spec.rows:
            for column in self.columns:
                yield row, column, self.cell(row, column)

    def cell(self, row: RowSpec, column: Column) -> Accuracy:
        """The accuracy of one row in one column, from the folder if it is there."""
        points, clean = self.points["test"], column.mode == "clean"

        def compute() -> dict[str, Any]:
            x = points.pixels if clean else self.examples(row.model, column.mode)[column.steps]
            found = answers(
                self.defense(row),
                x,
                points.labels,
                index=points.index,
                stream="test",
                batch_size=self.batch_size,
                ranks=self.ranks,
                progress=self.progress,
            )
            return {
                "accuracy": asdict(found.accuracy),
                "labels": found.labels.tolist(),
                "margins": [
                    round(margin, 6) if math.isfinite(margin) else None
                    for margin in found.margins.tolist()
                ],
            }

        identity = self.cell_identity(row, column)
        kept = self.store.value("cells", f"{row.title}, {column.name}", identity, compute)
        self._right[row.title, column] = torch.tensor(kept.value["labels"]) == points.labels
        accuracy = Accuracy(**kept.value["accuracy"])
        self.listener.cell(row, column, accuracy, reused=kept.reused)
        return accuracy

    def right(self, row: RowSpec, column: Column) -> Tensor:
        """Which test points one row has right in one column, once that is measured."""
        return self._right[row.title, column]

    def cell_identity(self, row: RowSpec, column: Column) -> dict[str, Any]:
        """Everything that determines the answers of one row in one column."""
        return {
            "input": self.points_hash("test")
            if column.mode == "clean"
            else self.examples_identity(row.model, column.mode),
            "model": self.model_identity(row.model),
            "steps": column.steps,
            "defense": row.defense,
            "settings": row.settings,
            "draws": self.spec.draws,
            "seed": self.spec.seed,
            "batch_size": self.batch_size,
            "keeps": ("accuracy", "labels", "margins"),
            **self.defense_identity,
        }

    def cell_part(self, row: RowSpec, column: Column) -> str:
        """The file in the run's folder that has the answers of one row in one column."""
        path = self.store.path("cells", self.cell_identity(row, column))
        return path.relative_to(self.folder).as_posix()

    def defense(self, row: RowSpec) -> nn.Module:
        """The defended model of a row; one module, so that what it prepares is prepared once."""
        if row.title in self._defenses:
            return self._defenses[row.title]
        spec = self.spec
        options: dict[str, Any] = {"draws": spec.draws, "seed": spec.seed, "engine": spec.engine}
        settings = row.settings if row.defense == "none" else options | row.settings
        made = make_defense(row.defense, self.model(row.model), self.pool, **settings)
        made = made.to(self.device)
        self._defenses[row.title] = made
        return made
