"""An experiment stage by stage: train, attack, measure. Every part is kept and never redone.

Each trained model, set of adversarial examples and table cell is in the store under a hash of
everything that determines it, and written in one piece. So a rerun recomputes only what
changed, and an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from mixup_inference.attacks import pgd
from mixup_inference.classifier import device_of, logits_of
from mixup_inference.datasets import Dataset, LabelledImages, experiment_points, load_dataset
from mixup_inference.defenses import images_at_once, make_defense
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation.accuracy import Accuracy, answers, evaluate
from mixup_inference.evaluation.listener import Column, Listener
from mixup_inference.evaluation.networks import (
    bring_model,
    build_network,
    network_identity,
    side_of,
)
from mixup_inference.evaluation.places import check_device, make_folder
from mixup_inference.evaluation.spec import RowSpec, Spec
from mixup_inference.evaluation.store import Kept, Store, Tensors
from mixup_inference.files import fingerprint, hash_tensors, read_tensors
from mixup_inference.models import (
    CONFIG,
    WEIGHTS,
    check_pretrained,
    config_of,
    fill_weights,
    read_checkpoint,
    save_pretrained,
)
from mixup_inference.models.engines import make_engine
from mixup_inference.pool import Pool
from mixup_inference.progress import SILENT, Progress
from mixup_inference.ranks import Ranks
from mixup_inference.timing import Stage, timed
from mixup_inference.training import LAST, Epoch, Recipe, in_precision_of, one_process, train
from mixup_inference.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class Experiment:
    """A spec at work in a folder."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        *,
        device: str = "cpu",
        fabric: Fabric | None = None,
        data_root: Path | None = None,
        listener: Listener | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.device = check_device(device)
        self.fabric = fabric
        self.data_root = data_root
        self.listener = listener or Listener()
        self.progress = progress
        self.ranks = Ranks.of(fabric)
        self.store = Store(folder, self._warn, self.ranks)
        self._models: dict[str, nn.Module] = {}
        self._defenses: dict[str, nn.Module] = {}
        self._answer_hashes: dict[str, str] = {}
        self._point_hashes: dict[str, str] = {}
        self._right: dict[tuple[str, Column], Tensor] = {}
        self._examples: dict[tuple[str, str, str], dict[int, Tensor]] = {}
        make_folder(folder)

    @property
    def columns(self) -> list[Column]:
        """The table's columns, in order."""
        attack = self.spec.attack
        modes, steps = ((), ()) if attack is None else (attack.modes, attack.steps)
        return [Column("clean"), *(Column(mode, count) for mode in modes for count in steps)]

    @cached_property
    @timed(Stage.LOADING)
    def _dataset(self) -> Dataset:
        data = self.spec.data
        return load_dataset(
            data.name,
            self.data_root,
            size=data.size,
            channels=data.channels,
            progress=self.progress,
        )

    @cached_property
    @timed(Stage.LOADING)
    def points(self) -> dict[str, LabelledImages]:
        """The disjoint parts of the data: test, tuning, calibration, train."""
        data, dataset = self.spec.data, self._dataset
        sizes = {"test": data.test, "tuning": data.tuning, "calibration": data.calibration}
        brought = [name for name in self.spec.models if not self.spec.is_trained(name)]
        if dataset.test is None and brought:
            warnings.warn(
                f"{data.name} has no test part, so the test points are drawn from all of it. If "
                f"{', '.join(brought)} was trained on them, the numbers say little.",
                MixupInferenceWarning,
                stacklevel=2,
            )
        points = experiment_points(dataset, sizes, seed=self.spec.seed)
        points["test"] = points["test"].take(torch.arange(data.used))
        return points

    @cached_property
    def _train_hash(self) -> str:
        return hash_tensors(self.points["train"].images, self.points["train"].labels)

    def points_hash(self, part: str) -> str:
        """A hash of one part of the points."""
        if part not in self._point_hashes:
            points = self.points[part]
            self._point_hashes[part] = hash_tensors(points.images, points.labels, points.index)
        return self._point_hashes[part]

    @cached_property
    @timed(Stage.LOADING)
    def pool(self) -> Pool:
        """What the defences draw from: the training images, unless the spec says otherwise."""
        images = self.points["train"]
        if self.spec.data.pool == "test":
            if self._dataset.test is None:
                raise InputError(f"{self.spec.data.name} has no test part to take the pool from.")
            images = self._dataset.test
        return Pool(images.images, images.labels, classes=images.classes)

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
        image = self.points["train"].take(torch.arange(1)).pixels
        if self.spec.engine != "eager":
            for name in self.spec.used_models:
                trained = self.spec.is_trained(name)
                model = self._untrained(name).eval() if trained else self.model(name)
                make_engine(self.spec.engine, model.to(self.device), image.to(self.device))
        for row in self.spec.rows:
            trained = self.spec.is_trained(row.model)
            model = Blank(self.pool.classes) if trained else self.model(row.model)
            defended = make_defense(row.defense, model, self.pool, **row.settings)
            with torch.no_grad():
                defended.to(self.device)(image.to(self.device))

    @property
    def batch_size(self) -> int:
        """The spec's, or fewer if the images are large."""
        return images_at_once(self.points["train"].images, self.spec.batch_size)

    # Models

    def model_identity(self, name: str) -> dict[str, Any]:
        """Everything that determines a model."""
        identity = {
            "versions": _versions(),
            "device": self.device,
            "network": network_identity(self.spec.network_of(name)),
            "data": self._train_hash,  # trained on it or not, its defences draw from it
        }
        if not self.spec.is_trained(name):
            return identity | {"answers": self._answers(name)}
        network = self.spec.network_of(name)
        if network is not None and network.is_foreign:  # its code may change under its name
            identity["answers"] = self._answers(name)
        return identity | {"recipe": asdict(self.recipe(name))}

    def recipe(self, name: str) -> Recipe:
        """How a model is trained here."""
        return in_precision_of(self.fabric, self.spec.recipe(name))

    def training(self, name: str) -> dict[str, Any] | None:
        """How a model was trained, here or, if its checkpoint says so, elsewhere."""
        network = self.spec.network_of(name)
        if self.spec.is_trained(name):
            assert network is not None
            said = network.model_dump(exclude_none=True, exclude={"classes"})
            return {"network": said, **asdict(self.recipe(name))}
        card: Any = getattr(self.model(name), "card", None)
        try:
            recipe, said = Recipe.of_header(card["recipe"]), dict(card["architecture"])
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            return None
        of_data = ("num_classes", "channels", "size")
        return {"network": {k: said[k] for k in said if k not in of_data}, **asdict(recipe)}

    def _answers(self, name: str) -> str:
        """A hash of what the user's model answers to a few images, before any training here.

        So it is known again by what it does: by its weights and by its code.
        """
        if name not in self._answer_hashes:
            images = self.points["train"].take(torch.arange(min(8, len(self.points["train"]))))
            trained = self.spec.is_trained(name)
            model = self._untrained(name) if trained else self.model(name)
            with torch.no_grad():
                out = logits_of(model, images.pixels.to(device_of(model)))
            self._answer_hashes[name] = hash_tensors(out)
        return self._answer_hashes[name]

    def model_folder(self, name: str) -> Path:
        """Where a model's checkpoints are."""
        return self.folder / "models" / f"{name}-{fingerprint(self.model_identity(name))}"

    def model(self, name: str) -> nn.Module:
        """A model that was brought along, or trained; from the folder if it is there."""
        if name not in self._models:
            started = time.perf_counter()
            if self.spec.is_trained(name):
                self._models[name], reused = self._train(name)
            else:
                weights = self.spec.models[name].weights
                model = bring_model(self.spec.network_of(name), weights, self.points["train"])
                self._models[name], reused = model.to(self.device), True
            seconds = time.perf_counter() - started
            self.listener.made(f"model {name}", reused=reused, seconds=seconds)
        return self._models[name]

    def _untrained(self, name: str) -> nn.Module:
        points, network = self.points["train"], self.spec.network_of(name)
        assert network is not None
        return build_network(
            network,
            classes=points.classes,
            channels=points.images.shape[1],
            size=side_of(points),
            seed=self.spec.seed_of(name),
        )

    @timed(Stage.TRAINING)
    def _train(self, name: str) -> tuple[nn.Module, bool]:
        recipe, folder = self.recipe(name), self.model_folder(name)
        points, model, fabric = self.points["train"], self._untrained(name), self.fabric
        done = self._epochs_done(name, model)
        done = self.ranks.first(lambda: done)  # what the first process found counts for all
        if done < recipe.epochs:
            train(
                model,
                points.images,
                points.labels,
                recipe,
                folder=folder,
                fabric=fabric or one_process(recipe, self.device),
                progress=self.progress,
            )
        model.to(self.device).eval()
        if self.ranks.is_first and config_of(model) is not None:
            self._publish(name, model)
        return model, done == recipe.epochs

    def _publish(self, name: str, model: nn.Module) -> None:
        """Keep a trained model also as a folder for others, unless that is there and whole."""
        folder, test = self.model_folder(name), self.points["test"]
        try:
            check_pretrained(folder)
            return
        except InputError as error:
            if (folder / WEIGHTS).exists() or (folder / CONFIG).exists():
                self.listener.warn(f"{error} Writing it again.")
        save_pretrained(
            model,
            folder,
            data=self.spec.data.name,
            recipe=self.recipe(name),
            clean_accuracy=evaluate(model, test.images, test.labels),
            seed=self.spec.seed_of(name),
        )

    def _epochs_done(self, name: str, model: nn.Module) -> int:
        """Fill the model with its checkpoint, if there is one and it is the right one."""
        path = self.model_folder(name) / LAST
        if not path.exists():
            return 0
        expected = self.model_identity(name) | {"architecture": config_of(model)}
        try:
            tensors, header = read_checkpoint(path)
            for key in ("recipe", "data", "architecture"):
                if fingerprint(header.get(key)) != fingerprint(expected[key]):
                    raise InputError(f"{path} belongs to another training (its {key} differs).")
            done = int(header["epochs_done"])
            fill_weights(model, tensors, path)
            return done
        except (InputError, KeyError, TypeError) as error:
            self.listener.warn(f"{error} Training {name} again.")
            path.unlink(missing_ok=True)
            return 0

    def history(self, name: str) -> list[Epoch]:
        """The epochs of a trained model; none for one that was brought along."""
        self.model(name)
        if not self.spec.is_trained(name):
            return []
        _, header = read_tensors(self.model_folder(name) / LAST)
        return [Epoch(**epoch) for epoch in header["history"]]

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

    def part(
        self, kind: str, what: str, identity: dict[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """A JSON value that is determined by its identity, from the folder if it is there."""
        return self._told(what, self.store.value(kind, what, identity, compute))

    def tensors(
        self, name: str, what: str, identity: dict[str, Any], compute: Callable[[], Tensors]
    ) -> Tensors:
        """Examples of an attack, and facts about them; from the folder if they are there."""
        return self._told(what, self.store.tensors(name, what, identity, compute))

    def _warn(self, message: str) -> None:
        self.listener.warn(message)  # the one that listens by then

    def _told(self, what: str, kept: Kept[T]) -> T:
        self.listener.made(what, reused=kept.reused, seconds=kept.seconds)
        return kept.value

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


class Blank(nn.Module):
    """A classifier that finds all classes equally likely."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        """Zero logits."""
        return x.new_zeros(x.shape[0], self.classes)


def _versions() -> dict[str, str]:
    return {"mixup_inference": __version__, "torch": str(torch.__version__)}
