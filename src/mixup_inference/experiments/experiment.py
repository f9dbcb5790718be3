"""An experiment, stage by stage: train, attack, measure, analyse, and the results of all.

Each trained model, set of adversarial examples and table cell is cached under a hash of everything
that determines it. So a rerun computes only what changed, and an interrupted run continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
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
from mixup_inference.experiments.cache import Cache, Compute, Identity, TensorFile, Tensors
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import ExperimentData, first
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
        self.data = ExperimentData(spec, data_root, progress)
        self.models = ModelProvider(self, fabric, reuse_models=reuse_models)
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
        self, kind: str, title: str, identity: Identity, compute: Compute, name: str | None = None
    ) -> Any:
        """A result, from the folder if it is there; the callback is told (see ``Cache``)."""
        entry = self.cache.get_or_compute(kind, title, identity, compute, name)
        self.callback.made(title, reused=entry.reused, seconds=entry.seconds)
        return entry.value

    @property
    def options(self) -> dict[str, Any]:
        """The batch size, the processes and the progress bar of attacks and evaluations."""
        size = self.data.batch_size
        return {"batch_size": size, "ranks": self.ranks, "progress": self.progress}

    def check(self) -> None:
        """Try every row's defence on one image, with an untrained model where there is no other.

        So a setting that does not fit the images or the model, a class without training images, or
        an engine that is not installed is found before anything is trained or attacked.
        """
        images = first(self.data.points["train"], 64).pixels.to(self.device)
        for name in self.spec.used_models if self.spec.engine != "eager" else ():
            trained = self.spec.is_trained(name)
            model = self.models.untrained(name).eval() if trained else self.models[name]
            engine_for(self.spec.engine, model.to(self.device), images)
        for row in self.spec.rows:
            untrained = DummyClassifier(self.data.pool.classes, slope=0)
            model = untrained if self.spec.is_trained(row.model) else self.models[row.model]
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
                for row, column in product(self.spec.rows, self.spec.columns)
                if row.model == name and column.mode == mode
            ]
            there = self.cache.path("attacks", identity, f"{name}-{mode}").exists()
            needed = everything or there or not all(file.exists() for file in files)
            if self.ranks.first(partial(bool, needed)):
                self.examples(name, mode)

    def examples_identity(self, name: str, mode: str, part: str = "test") -> Identity:
        """Everything that determines a set of adversarial examples."""
        assert self.spec.attack is not None
        return {
            "model": self.models.identity(name),
            "attack": self.spec.attack.identity,
            "mode": mode,
            "batch_size": self.data.batch_size,
            "seed": derive_seed(self.spec.seed, "oblivious attack"),
            "points": self.data.hash_of(part),
            "code": code_hash(pgd, without=("defenses", "detection")),  # it attacks the bare model
        }

    def examples(self, name: str, mode: str, part: str = "test") -> TensorFile:
        """PGD's examples of the points of a part for a model: a file with one set a step count."""
        key = name, mode, part
        if key in self._examples:
            return self._examples[key]
        identity = self.examples_identity(name, mode, part)
        points, attack = self.data.points[part], self.spec.attack
        assert attack is not None

        def compute() -> Tensors:
            examples = pgd(
                self.models[name],
                points.pixels.to(self.device),
                points.labels,
                steps=max(attack.steps),
                snapshots=attack.steps,
                targeted=mode == "targeted",
                seed=identity["seed"],
                index=points.index,
                **attack.model_dump(exclude={"steps", "modes"}),
                **self.options,
            )
            return {f"PGD-{steps}": tensor.cpu() for steps, tensor in examples.items()}, {}

        title = f"{mode} attack on {name}" + ("" if part == "test" else f", {part} points")
        file = self.cached("attacks", title, identity, compute, name=f"{name}-{mode}")
        return self._examples.setdefault(key, file)

    def measure(self) -> Table:
        """All cells of the table."""
        cells = list(product(self.spec.rows, self.spec.columns))
        with self.progress.task("table", total=len(cells)) as self.callback.task:
            return {(row.title, column.name): self.cell(row, column) for row, column in cells}

    def cell(self, row: RowSpec, column: Column) -> Cell:
        """The accuracy of one row in one column, from the folder if it is there."""
        points = self.data.points["test"]

        def compute() -> dict[str, Any]:
            x = points.images
            if column.mode != "clean":
                x = self.examples(row.model, column.mode)[f"PGD-{column.steps}"]
            defense = self.defense(row)
            found = answers(defense, x, points.labels, points.index, "test", **self.options)
            margins = [round(m, 6) if math.isfinite(m) else None for m in found.margins.tolist()]
            return {
                "accuracy": asdict(found.accuracy),
                "labels": found.labels.tolist(),
                "margins": margins,
            }

        identity, title = self.cell_identity(row, column), f"{row.title}, {column.name}"
        entry = self.cache.get_or_compute("cells", title, identity, compute)
        accuracy = Accuracy(**entry.value["accuracy"])
        self.callback.cell(row, column, accuracy, reused=entry.reused)
        right = torch.tensor(entry.value["labels"]) == points.labels
        path = self.cache.path("cells", identity)
        return Cell(accuracy, right, path.relative_to(self.folder).as_posix())

    def cell_identity(self, row: RowSpec, column: Column) -> Identity:
        """Everything that determines the predictions of one row in one column."""
        points: Any = self.data.hash_of("test")
        if column.mode != "clean":
            points = self.examples_identity(row.model, column.mode)
        return {
            "input": points,
            "model": self.models.identity(row.model),
            "steps": column.steps,
            "keeps": ("accuracy", "labels", "margins"),
            "code": code_hash(answers),
            **self.defense_identity(row.defense, row.settings),
        }

    @property
    def drawing(self) -> dict[str, Any]:
        """The settings that all defences of the experiment share."""
        return {"draws": self.spec.draws, "seed": self.spec.seed, "engine": self.spec.engine}

    def defense_identity(self, name: str, settings: dict[str, Any]) -> Identity:
        """What determines a defence apart from its model: its code, its pool, its engine."""
        identity: Identity = {"defense": name, "settings": settings}
        if name != "none":
            identity["defense code"] = code_hash(DEFENSES[name].factory)
        return identity | self.inference_identity

    @cached_property
    def inference_identity(self) -> Identity:
        """What determines all inference: draws, batches, the pool and engine if not the default."""
        identity: Identity = {"draws": self.spec.draws, "seed": self.spec.seed}
        identity["batch_size"] = self.data.batch_size
        if self.spec.data.pool != "train":
            identity["pool"] = hash_tensors(self.data.pool.images, self.data.pool.labels)
        if self.spec.engine != "eager":
            identity["engine"] = self.spec.engine
        return identity

    def defense(self, row: RowSpec) -> nn.Module:
        """The defended model of a row; one module, so that its set-up is done once."""
        if row.title not in self._defenses:
            model, settings = self.models[row.model], self.drawing | row.settings
            made = make_defense(row.defense, model, self.data.pool, **settings)
            self._defenses[row.title] = made.to(self.device)
        return self._defenses[row.title]
