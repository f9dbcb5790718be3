"""The data of an experiment: disjoint points, the pool, and hashes of them."""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path

import torch

from mixup_inference.datasets import Dataset, LabelledImages, experiment_points, load_dataset
from mixup_inference.defenses import images_at_once
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.experiments.spec import Spec
from mixup_inference.models import WEIGHTS, shipped_models
from mixup_inference.pool import Pool
from mixup_inference.utils.io import hash_tensors, read_header
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.utils.progress import Progress


def first(points: LabelledImages, count: int) -> LabelledImages:
    """The first so many points, or all if there are fewer."""
    return points.take(torch.arange(len(points))[:count])


class ExperimentData:
    """What a spec's [data] section describes, loaded when it is first needed."""

    def __init__(self, spec: Spec, root: Path | None, progress: Progress) -> None:
        self.spec = spec
        self.root = root
        self.progress = progress
        self._hashes: dict[str, str] = {}

    @cached_property
    @timed(Stage.LOADING)
    def dataset(self) -> Dataset:
        """The whole data set."""
        data = self.spec.data
        return load_dataset(
            data.name, self.root, size=data.size, channels=data.channels, progress=self.progress
        )

    @cached_property
    @timed(Stage.LOADING)
    def points(self) -> dict[str, LabelledImages]:
        """The disjoint parts of the data: test, tuning, calibration, train."""
        data, dataset = self.spec.data, self.dataset
        sizes = {"test": data.test, "tuning": data.tuning, "calibration": data.calibration}
        pretrained = [
            name for name in self.spec.models if self._may_know(name, sum(sizes.values()))
        ]
        if dataset.test is None and pretrained:
            warnings.warn(
                f"{data.name} has no test part, so the test points are drawn from all of it. If "
                f"{', '.join(pretrained)} was trained on them, the numbers say little.",
                MixupInferenceWarning,
                stacklevel=2,
            )
        points = experiment_points(dataset, sizes, seed=self.spec.seed)
        points["test"] = first(points["test"], data.used)
        return points

    def _may_know(self, name: str, points: int) -> bool:
        """Whether a model that is brought may have been trained on these held-out points."""
        if self.spec.is_trained(name):
            return False
        weights = self.spec.models[name].weights
        shipped = shipped_models().get(str(weights))
        held_out = read_header(shipped / WEIGHTS).get("held_out") if shipped else None
        return held_out is None or held_out["seed"] != self.spec.seed or held_out["points"] < points

    def hash_of(self, part: str) -> str:
        """A hash of one part of the points; of the training part without its positions."""
        if part not in self._hashes:
            points = self.points[part]
            tensors = [points.images, points.labels, points.index]
            self._hashes[part] = hash_tensors(*tensors[: 2 if part == "train" else 3])
        return self._hashes[part]

    @cached_property
    @timed(Stage.LOADING)
    def pool(self) -> Pool:
        """The clean samples that defences mix in: the training images, or as the spec says."""
        images = self.points["train"]
        if self.spec.data.pool == "test":
            if self.dataset.test is None:
                raise InputError(f"{self.spec.data.name} has no test part to take the pool from.")
            images = self.dataset.test
        return Pool(images.images, images.labels, classes=images.classes)

    @property
    def batch_size(self) -> int:
        """The spec's, or fewer if the images are large."""
        return images_at_once(self.points["train"].images, self.spec.batch_size)
