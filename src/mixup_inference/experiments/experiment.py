"""An experiment, stage by stage: train, attack, measure, analyse, and the results of all.

Each trained model, set of adversarial examples and table cell is cached under a hash of everything
that determines it. So a rerun computes only what changed, and an interrupted run continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks import pgd
from mixup_inference.defenses import DEFENSES, make_defense
from mixup_inference.draws import derive_seed
from mixup_inference.evaluation.callback import Callback, Column
from mixup_inference.evaluation.evaluate import answers
from mixup_inference.experiments.adaptive import adaptive
from mixup_inference.experiments.analysis import analyses
from mixup_inference.experiments.cache import Cache, TensorFile, Tensors
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import ExperimentData
from mixup_inference.experiments.models import ModelProvider
from mixup_inference.experiments.results import collect
from mixup_inference.experiments.spec import RowSpec, Spec
from mixup_inference.metrics.accuracy import Accuracy
from mixup_inference.models.base import DummyClassifier
from mixup_inference.models.engines import engine_for
from mixup_inference.reporting.schema import Results
from mixup_inference.utils.distributed import Ranks, check_device, make_folder
from mixup_inference.utils.io import hash_tensors
from mixup_inference.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Cell:
    """A cell of the table: the accuracy, which points are right, and the file that has them."""

    accuracy: Accuracy
    right: Tensor
    file: str


#: The cells of a table by the row's title and the column's name.
Table = dict[tuple[str, str], Cell]


class Experiment:
    """A spec at work in a folder.

    Args:
        spec: what to compute.
        folder: where results are kept.
        device: where models compute; "auto" is the fastest there is.
        fabric: connects several processes, which share the work; None for one.
        data_root: where data sets are kept.
        callback: told of everything that is computed.
        progress: shows how far long work is.
        reuse_models: take finished models that older code has trained by the same recipe.
    """

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        *,
        device: str = "cpu",
        fabric: Fabric | None = None,
        data_root: Path | None = None,
        callback: Callback | None = None,
        progress: Progress = SILENT,
        reuse_models: bool = False,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.device = check_device(device)
        self.ranks = Ranks.of(fabric)
        self.callback = callback or Callback()
        self.progress = progress
        self.cache = Cache(folder, self.callback.warn, self.ranks)
        self.data = ExperimentData(spec, root=data_root, progress=progress)
        self.models = ModelProvider(
            spec,
            self.data,
            folder,
            device=self.device,
            fabric=fabric,
            ranks=self.ranks,
            callback=self.callback,
            progress=progress,
            reuse_models=reuse_models,
        )
        self._defenses: dict[str, nn.Module] = {}
        self._examples: dict[tuple[str, str, str], TensorFile] = {}
        make_folder(folder)

    def run(self) -> Results:
        """Go through all stages; the contents of results.json."""
        started = time.perf_counter()
        self.train()
        self.attack()
        table = self.measure()
        figures = analyses(self)
        attacked = adaptive(self)
        seconds = time.perf_counter() - started
        return collect(self, table, figures=figures, adaptive=attacked, seconds=seconds)

    def cached(
        self, kind: str, title: str, identity: dict[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """A JSON value that is determined by its identity, from the folder if it is there."""
        entry = self.cache.get_or_compute(kind, title, identity, compute)
        self.callback.made(title, reused=entry.reused, seconds=entry.seconds)
        return entry.value

    def cached_tensors(
        self, name: str, title: str, identity: dict[str, Any], compute: Callable[[], Tensors]
    ) -> TensorFile:
        """Adversarial examples and facts about them, from the folder if they are there."""
        entry = self.cache.get_or_compute_tensors(name, title, identity, compute)
        self.callback.made(title, reused=entry.reused, seconds=entry.seconds)
        return entry.value

    @property
    def columns(self) -> list[Column]:
        """The table's columns, in order."""
        return self.spec.columns

    @property
    def batch_size(self) -> int:
        """How many images are computed at a time."""
        return self.data.batch_size

    def check(self) -> None:
        """Try every row's defence on one image, with an untrained model where there is no other.

        So a setting that does not fit the images or the model, a class without training images, or
        an engine that is not installed is found before anything is trained or attacked.
        """
        train = self.data.points["train"]
        images = train.take(torch.arange(min(64, len(train)))).pixels.to(self.device)
        if self.spec.engine != "eager":
            for name in self.spec.used_models:
                trained = self.spec.is_trained(name)
                model = self.models.untrained(name).eval() if trained else self.models[name]
                engine_for(self.spec.engine, model.to(self.device), images)
        for row in self.spec.rows:
            trained = self.spec.is_trained(row.model)
            model = (
                DummyClassifier(self.data.pool.classes, slope=0)
                if trained
                else self.models[row.model]
            )
            defended = make_defense(row.defense, model, self.data.pool, **row.settings)
            with torch.no_grad():
                defended.to(self.device)(images[:1])

    def train(self, names: Iterable[str] | None = None) -> None:
        """Train the models that the spec needs, or these, unless they are there."""
        for name in self.spec.needed_models if names is None else names:
            if self.spec.is_trained(name):
                self.models[name]

    def attack(self, *, everything: bool = False) -> None:
        """Make the adversarial examples that a missing cell of the table needs, or all.

        Damaged ones are made again in any case.
        """
        names = dict.fromkeys([*self.spec.used_models, *self.spec.figure_models])
        for name, mode in product(names, self.spec.attack.modes if self.spec.attack else ()):
            identity = self.examples_identity(name, mode)
            files = [
                self.cache.path("cells", self.cell_identity(row, column))
                for row, column in product(self.spec.rows, self.columns)
                if row.model == name and column.mode == mode
            ]
            there = self.cache.path("attacks", identity, f"{name}-{mode}").exists()
            needed = everything or there or not all(file.exists() for file in files)
            if self.ranks.first(partial(bool, needed)):
                self.examples(name, mode)

    def examples_identity(self, name: str, mode: str, part: str = "test") -> dict[str, Any]:
        """Everything that determines a set of adversarial examples."""
        assert self.spec.attack is not None
        return {
            "model": self.models.identity(name),
            "attack": self.spec.attack.identity,
            "mode": mode,
            "batch_size": self.batch_size,
            "seed": self._attack_seed,
            "points": self.data.hash_of(part),
            "code": code_hash(pgd, without=("defenses", "detection")),  # it attacks the bare model
        }

    @property
    def _attack_seed(self) -> int:
        return derive_seed(self.spec.seed, "oblivious attack")

    def examples(self, name: str, mode: str, part: str = "test") -> TensorFile:
        """PGD's examples of the points of a part for a model: a file with one set a step count."""
        key = (name, mode, part)
        if key not in self._examples:
            which = "" if part == "test" else f", {part} points"
            self._examples[key] = self.cached_tensors(
                f"{name}-{mode}",
                f"{mode} attack on {name}{which}",
                self.examples_identity(name, mode, part),
                lambda: (self._attack(name, mode, part), {}),
            )
        return self._examples[key]

    def _attack(self, name: str, mode: str, part: str) -> dict[str, Tensor]:
        attack, points = self.spec.attack, self.data.points[part]
        assert attack is not None
        examples = pgd(
            self.models[name],
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

    def measure(self) -> Table:
        """All cells of the table."""
        total = len(self.spec.rows) * len(self.columns)
        table: Table = {}
        with self.progress.task("table", total=total) as self.callback.task:
            for row, column in product(self.spec.rows, self.columns):
                table[row.title, column.name] = self.cell(row, column)
        return table

    def cell(self, row: RowSpec, column: Column) -> Cell:
        """The accuracy of one row in one column, from the folder if it is there."""
        points, clean = self.data.points["test"], column.mode == "clean"

        def compute() -> dict[str, Any]:
            x = points.images
            if not clean:
                x = self.examples(row.model, column.mode)[f"PGD-{column.steps}"]
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

        identity, title = self.cell_identity(row, column), f"{row.title}, {column.name}"
        entry = self.cache.get_or_compute("cells", title, identity, compute)
        accuracy = Accuracy(**entry.value["accuracy"])
        self.callback.cell(row, column, accuracy, reused=entry.reused)
        right = torch.tensor(entry.value["labels"]) == points.labels
        path = self.cache.path("cells", identity)
        return Cell(accuracy, right, path.relative_to(self.folder).as_posix())

    def cell_identity(self, row: RowSpec, column: Column) -> dict[str, Any]:
        """Everything that determines the predictions of one row in one column."""
        return {
            "input": self.data.hash_of("test")
            if column.mode == "clean"
            else self.examples_identity(row.model, column.mode),
            "model": self.models.identity(row.model),
            "steps": column.steps,
            "draws": self.spec.draws,
            "seed": self.spec.seed,
            "batch_size": self.batch_size,
            "keeps": ("accuracy", "labels", "margins"),
            "code": code_hash(answers),
            **self.defense_identity(row.defense, row.settings),
        }

    def defense_identity(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """What determines a defence apart from its model: its code, its pool, its engine."""
        identity: dict[str, Any] = {"defense": name, "settings": settings}
        if name != "none":
            identity["defense code"] = code_hash(DEFENSES[name].factory)
        return identity | self.inference_identity

    @cached_property
    def inference_identity(self) -> dict[str, str]:
        """The pool and the engine, where they are not the default."""
        identity = {}
        if self.spec.data.pool != "train":
            identity["pool"] = hash_tensors(self.data.pool.images, self.data.pool.labels)
        if self.spec.engine != "eager":
            identity["engine"] = self.spec.engine
        return identity

    def defense(self, row: RowSpec) -> nn.Module:
        """The defended model of a row; one module, so that its set-up is done once."""
        if row.title not in self._defenses:
            spec = self.spec
            common = {"draws": spec.draws, "seed": spec.seed, "engine": spec.engine}
            settings = common | row.settings
            model = self.models[row.model]
            made = make_defense(row.defense, model, self.data.pool, **settings)
            self._defenses[row.title] = made.to(self.device)
        return self._defenses[row.title]
