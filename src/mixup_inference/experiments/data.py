"""What an experiment works with: its folder, the points of its data, the pool, what was kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mixup_inference.datasets import Dataset, LabelledImages, experiment_points, load_dataset
from mixup_inference.defenses import images_at_once
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation.callback import Listener
from mixup_inference.experiments.cache import Kept, Store, Tensors
from mixup_inference.experiments.spec import Spec
from mixup_inference.pool import Pool
from mixup_inference.utils.distributed import Ranks, check_device, make_folder
from mixup_inference.utils.io import hash_tensors
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


T = TypeVar("T")


class Material:
    """A spec, a folder, and the data."""

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
        self._point_hashes: dict[str, str] = {}
        make_folder(folder)

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
    def train_hash(self) -> str:
        """A hash of the training images and labels."""
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

    @property
    def batch_size(self) -> int:
        """The spec's, or fewer if the images are large."""
        return images_at_once(self.points["train"].images, self.spec.batch_size)

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
