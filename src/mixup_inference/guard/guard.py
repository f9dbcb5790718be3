"""The guard: F's answer, unless MI-PL finds the input suspicious; then MI-OL's (Section 4.3)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from mixup_inference.datasets import as_tensors, random_order
from mixup_inference.defenses import CombinedInference, MixupInference
from mixup_inference.defenses.combined import Examined
from mixup_inference.errors import InputError
from mixup_inference.evaluation import evaluate
from mixup_inference.experiments.spec.fields import Count, NotNegative, Table
from mixup_inference.guard.calibration import Calibration, Drift, calibrate, drift
from mixup_inference.guard.evaluation import Evaluation, evaluate_guard
from mixup_inference.guard.settings import Settings
from mixup_inference.models.call import dtype_of
from mixup_inference.pool import Pool
from mixup_inference.utils.io import hash_tensors
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import as_pixels, check_images, check_index

#: The stream of a guard's draws: a seed gives the same ones in any release and engine.
STREAM = "guard"

#: Of a guard that is about to be calibrated.
UNSET = Calibration(threshold=1, false_positive_rate=1, points=1, flagged=0, low=0, high=1)


class PoolCost(Table):
    """The accuracy that MI-OL loses because only a part of the pool is stored with the guard.

    Attributes:
        images: number of images in the whole pool.
        points: number of clean images on which MI-OL was measured.
        whole: how many of them it classifies correctly with the whole pool.
        part: how many with the stored part.
    """

    images: Count
    points: Count
    whole: NotNegative
    part: NotNegative


class Stopping(Table):
    """What stopping early does on the calibration images.

    Attributes:
        points: their number.
        same: how many are flagged, or not flagged, as by all draws.
        draws: the mean number of draws for one, MI-OL's included.
    """

    points: Count
    same: NotNegative
    draws: float


@dataclass(frozen=True)
class Answer:
    """What a guard says about each image: named arrays with one row per image.

    Attributes:
        label: the answer: F's label, or MI-OL's where the image is flagged.
        probabilities: of all classes, from the prediction that gives the label.
        undefended_label: F's label.
        score: how much mixing lowers the confidence in F's label; larger is more suspicious.
        is_adversarial: whether the score exceeds the threshold. False does not mean that the
            image is clean: an attack that knows the guard can evade it (``Guard.evaluate``).
        draws: how many random mixtures each image needed.
    """

    label: Tensor
    probabilities: Tensor
    undefended_label: Tensor
    score: Tensor
    is_adversarial: Tensor
    draws: Tensor


class Guard:
    """A calibrated MI-Combined: predict, flag, save, load, check.

    An adaptive attack evades it (``evaluate`` measures how often), so it is a monitor for attacks
    that ignore it, not a wall.

    Args:
        model: any classifier from NCHW images in [0, 1] to logits.
        pool: the clean images that it mixes with.
        calibration: the threshold, and how it was found.
        settings: those of MI-Combined.
        class_names: names of the labels.
        pool_cost: the accuracy lost because the pool is only a part of a larger one.
        stopping: what stopping early saves, and what it changes.
        evaluation: what ``evaluate`` has measured.

    >>> images, labels = torch.rand(60, 1, 4, 4), torch.arange(60) % 2
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> guard = Guard.fit(model, Pool(images[:20], labels[:20]), images[20:], draws=5)
    >>> answer = guard.predict(images[:3], seeds=torch.tensor([7, 8, 9]))
    >>> answer.label.shape, answer.probabilities.shape, answer.is_adversarial.dtype
    (torch.Size([3]), torch.Size([3, 2]), torch.bool)
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        calibration: Calibration,
        settings: Settings | None = None,
        *,
        class_names: Sequence[str] = (),
        pool_cost: PoolCost | None = None,
        stopping: Stopping | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.calibration = calibration
        self.pool_cost = pool_cost
        self.stopping = stopping
        self.evaluation = evaluation
        self.class_names = tuple(class_names) or tuple(map(str, range(pool.classes)))
        if len(self.class_names) != pool.classes:
            raise InputError(
                f"there are {len(self.class_names)} class names for {pool.classes} classes."
            )
        self.inference = _inference(model, pool, self.settings, calibration.threshold)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        pool: Pool,
        clean_images: Tensor | Iterable[Any],
        clean_labels: Tensor | None = None,
        *,
        false_positive_rate: float = 0.05,
        per_class: int | None = None,
        class_names: Sequence[str] = (),
        data: str = "",
        preset: str | None = None,
        **settings: Any,
    ) -> Self:
        """Calibrate a guard on clean images.

        Args:
            model: any classifier from NCHW images in [0, 1] to logits.
            pool: clean images with labels, such as the training images; they are kept in 8 bits.
            clean_images: NCHW, uint8 or float in [0, 1]; neither in the pool nor trained on.
            clean_labels: their labels, to count false alarms class by class.
            false_positive_rate: the share of new clean images that may be flagged.
            per_class: keep only this many images of each class from the pool, which makes the
                guard's folder small; with labels, the loss is measured (``pool_cost``).
            class_names: names of the labels.
            data: the name of the data set, for the record.
            preset: a preset of mi-combined by name, or a file that ``tune`` wrote.
            **settings: see ``Settings``; they override those of the preset.
        """
        chosen = Settings(**settings) if preset is None else Settings.of_preset(preset, **settings)
        if not isinstance(clean_images, Tensor) or clean_labels is not None:
            clean_images, clean_labels = as_tensors(
                clean_images, clean_labels, what="the clean images"
            )
        part = in_8_bits(pool if per_class is None else balanced(pool, per_class))
        cost = None
        if per_class is not None and clean_labels is not None:
            cost = _cost(model, pool, part, chosen, clean_images, clean_labels)
        guard = cls(model, part, UNSET, chosen, class_names=class_names, pool_cost=cost)
        scores = guard.scores(clean_images)
        guard.calibration = calibrate(
            scores,
            false_positive_rate,
            labels=clean_labels,
            names=guard.class_names,
            data=data,
            date=date.today().isoformat(),
            images=hash_tensors(clean_images),
        )
        guard.inference.threshold = guard.calibration.threshold
        if chosen.stop is not None:
            guard.stopping = guard._stopping(clean_images, scores)
        return guard

    @property
    def model(self) -> nn.Module:
        """F."""
        return self.inference.model

    @property
    def pool(self) -> Pool:
        """The clean images that it mixes with."""
        return self.inference.pool

    def predict(self, x: Tensor, *, seeds: Tensor | None = None) -> Answer:
        """Answer for images, NCHW, uint8 or float in [0, 1].

        ``seeds`` holds one integer for each image, which determines all of its draws: with the same
        seed, an image gets the same answer in any batch. By default the operating system supplies
        new seeds at each call.
        """
        x = check_images(as_pixels(x, dtype_of(self.model)))
        seeds = fresh_seeds(len(x)) if seeds is None else seeds
        index = check_index(seeds, count=len(x), device=x.device)
        found = self.inference.examine(x, index=index, stream=STREAM)
        return Answer(
            label=found.answer.argmax(1),
            probabilities=found.answer.exp(),
            undefended_label=found.before.argmax(1),
            score=found.score,
            is_adversarial=found.detected,
            draws=found.draws,
        )

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """The score of each image from all draws, even if ``stop`` is set; the draws are fixed."""
        every = self.settings.model_copy(update={"stop": None})
        inference = _inference(self.model, self.pool, every, 1.0)
        return torch.cat([found.score for found in _examined(inference, images)])

    @torch.no_grad()
    def _stopping(self, images: Tensor, scores: Tensor) -> Stopping:
        """Compare decisions and draws with the scores of all draws."""
        found = list(_examined(self.inference, images))
        flags = torch.cat([part.detected for part in found])
        return Stopping(
            points=len(images),
            same=int((flags == (scores > self.calibration.threshold)).sum()),
            draws=float(torch.cat([part.draws for part in found]).double().mean()),
        )

    def check(self, clean_images: Tensor) -> Drift:
        """Whether the false alarms on new clean images fit the calibration."""
        return drift(self.calibration, self.predict(clean_images).is_adversarial)

    def evaluate(
        self, x: Tensor, y: Tensor, *, progress: Progress = SILENT, **options: Any
    ) -> Evaluation:
        """Attack the guard, and keep what was measured; see ``evaluate_guard``."""
        self.evaluation = evaluate_guard(self.inference, x, y, progress=progress, **options)
        return self.evaluation

    def save(self, folder: str | Path, *, half: bool = False) -> Path:
        """Write the guard as a folder that can be copied to another machine."""
        from mixup_inference.guard.folder import save_guard  # noqa: PLC0415 (imports this module)

        return save_guard(self, Path(folder), half=half)

    def export(self, path: str | Path) -> Path:
        """Write the guard as one file that runs without this package; see ``export_guard``."""
        from mixup_inference.guard.export import export_guard  # noqa: PLC0415 (imports this module)

        return export_guard(self, path)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> Guard:
        """Read a folder that ``save`` wrote; give ``model`` if the folder lacks the network."""
        from mixup_inference.guard.folder import load_guard  # noqa: PLC0415

        return load_guard(Path(folder), model)


def _cost(
    model: nn.Module, pool: Pool, part: Pool, settings: Settings, images: Tensor, labels: Tensor
) -> PoolCost:
    """Measure MI-OL with the whole pool and with a part of it."""
    right = []
    for some in (pool, part):
        defended = MixupInference(
            model, some, lam=settings.lam_defend, draws=settings.draws, engine=settings.engine
        )
        right.append(evaluate(defended, images, labels).correct)
    return PoolCost(images=len(pool), points=len(labels), whole=right[0], part=right[1])


def _inference(
    model: nn.Module, pool: Pool, settings: Settings, threshold: float
) -> CombinedInference:
    return CombinedInference(model, pool, threshold=threshold, **settings.model_dump())


def _examined(inference: CombinedInference, images: Tensor) -> Iterator[Examined]:
    """What the parts of a guard find in images; the draws are fixed."""
    for rows in torch.arange(len(images)).split(256):
        x = as_pixels(images[rows], dtype_of(inference.model))
        yield inference.examine(x, index=rows)


def fresh_seeds(count: int) -> Tensor:
    """Seeds from the operating system, which nobody can foresee."""
    return torch.from_numpy(np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.int64))


def in_8_bits(pool: Pool) -> Pool:
    """The pool with its images rounded to 8 bits, as a guard keeps them."""
    if pool.images.dtype == torch.uint8:
        return pool
    images = (pool.images * 255).round().clamp(0, 255).to(torch.uint8)
    return Pool(images, pool.labels, classes=pool.classes)


def balanced(pool: Pool, per_class: int, *, seed: int = 0) -> Pool:
    """A pool of as many random images of each class, or all of a class that has fewer.

    >>> small = balanced(Pool(torch.zeros(30, 1, 2, 2), torch.arange(30) % 3), 4)
    >>> len(small), torch.bincount(small.labels).tolist()
    (12, [4, 4, 4])
    """
    order = random_order(len(pool), seed=seed, name="guard's pool")
    labels = pool.labels[order]
    rows = [order[labels == label][:per_class] for label in range(pool.classes)]
    chosen = torch.cat(rows).sort().values
    return Pool(pool.images[chosen], pool.labels[chosen], classes=pool.classes)
