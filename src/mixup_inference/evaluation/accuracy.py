"""Accuracy as a count with an interval, and what it cost in forward passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixup_inference.checks import (
    as_pixels,
    check_index,
    check_int,
    check_labels,
    check_stored_images,
)
from mixup_inference.classifier import count_passes, device_of, dtype_of, logits_of
from mixup_inference.datasets import as_tensors
from mixup_inference.defenses import StochasticModule
from mixup_inference.errors import InputError
from mixup_inference.progress import SILENT, Progress
from mixup_inference.ranks import ALONE, Ranks

#: A value and the two ends of its interval.
Estimate = tuple[float, float, float]
Z95 = 1.959963984540054  # the normal quantile of a 95% interval


@dataclass(frozen=True)
class Accuracy:
    """How many of how many points were classified correctly, and forward passes per image.

    ``prepared``: images that passed before, once for all points (the pool, for a control variate).
    """

    correct: int
    total: int
    passes: float = math.nan
    prepared: int = 0

    @property
    def value(self) -> float:
        """The share of correct points."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson interval."""
        return wilson(self.correct, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}]"


@dataclass(frozen=True)
class Answers:
    """What a classifier said about labelled points, and what it cost.

    ``labels``: of each point. ``margins``: by how much the logarithm of its probability is above
    that of the second likeliest. ``right``: whether it is the true one.
    """

    labels: Tensor
    margins: Tensor
    right: Tensor
    passes: float
    prepared: int

    @property
    def accuracy(self) -> Accuracy:
        """How many are right."""
        return Accuracy(int(self.right.sum()), len(self.right), self.passes, self.prepared)


def cell_entry(accuracy: Accuracy) -> dict[str, float]:
    """An accuracy as results.json has it."""
    low, high = accuracy.interval
    entry = {
        "correct": accuracy.correct,
        "total": accuracy.total,
        "accuracy": accuracy.value,
        "low": low,
        "high": high,
    }
    if accuracy.prepared:
        entry["passes_once"] = accuracy.prepared
    return entry if math.isnan(accuracy.passes) else entry | {"passes_per_image": accuracy.passes}


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Estimate:
    """The difference a - b of two accuracies, as results.json has them, and its 95% interval.

    Paired, if both say which points they have right ("right", see ``as_bits``): those that are easy
    for one are mostly easy for the other, so less of the difference is luck of the points.
    """
    one, two = ((cell["accuracy"], cell["low"], cell["high"]) for cell in (a, b))
    if "right" not in a or "right" not in b or a["total"] != b["total"]:
        return newcombe(one, two)
    right = (from_bits(cell["right"], cell["total"]) for cell in (a, b))
    return newcombe(one, two, correlation(*right))


def newcombe(a: Estimate, b: Estimate, r: float = 0.0) -> Estimate:
    """The difference of two values (value, low, high) and its 95% interval, from their own.

    The hybrid score interval, method 10 in both of Newcombe's papers of 1998, on independent
    proportions and on paired ones, which have the correlation ``r``. His example of the first:

    >>> a, b = ((n / total, *wilson(n, total)) for n, total in ((56, 70), (48, 80)))
    >>> [round(value, 4) for value in newcombe(a, b)]
    [0.2, 0.0524, 0.3339]
    """

    def both(u: float, v: float) -> float:
        return math.sqrt(max(u * u - 2 * r * u * v + v * v, 0.0))

    value = a[0] - b[0]
    return value, value - both(a[0] - a[1], b[2] - b[0]), value + both(a[2] - a[0], b[0] - b[1])


def correlation(a: Tensor, b: Tensor) -> float:
    """The correlation over points of two values that each point has; 0 where it is not defined.

    With Newcombe's correction for proportions.
    """
    a, b = a.double(), b.double()
    covariance = float((a * b).mean() - a.mean() * b.mean())
    if covariance > 0:
        covariance = max(covariance - 1 / (2 * len(a)), 0.0)
    spread = math.sqrt(float(a.var(correction=0) * b.var(correction=0)))
    return max(-1.0, min(1.0, covariance / spread)) if spread > 1e-12 else 0.0


def as_bits(right: Tensor) -> str:
    """Which points are right, in hexadecimal digits: a bit each, the first one leading.

    >>> as_bits(torch.tensor([True, False, True, True, False]))
    'b0'
    """
    return np.packbits(right.numpy()).tobytes().hex()


def from_bits(text: str, count: int) -> Tensor:
    """The reverse of ``as_bits``, for so many points.

    >>> from_bits("b0", 5)
    tensor([ True, False,  True,  True, False])
    """
    try:
        packed = bytes.fromhex(text)
    except (TypeError, ValueError):
        packed = b""
    if len(packed) != math.ceil(count / 8):
        raise InputError(f"{text!r:.40} does not say which of {count} points are right.")
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))


def wilson(correct: float, total: float) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion (no continuity correction).

    >>> low, high = wilson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.037)
    """
    if not 0 <= correct <= total or total == 0:
        raise InputError(f"a proportion needs 0 <= correct <= total; saw {correct} of {total}.")
    p, z2 = correct / total, Z95**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    # The ends are exact where the proportion is: rounding must not leave [0, 1].
    return (0.0 if correct == 0 else centre - half, 1.0 if correct == total else centre + half)


def evaluate(
    classifier: nn.Module,
    x: Tensor | Iterable[Any],
    y: Tensor | None = None,
    *,
    index: Tensor | None = None,
    stream: str | int = "evaluate",
    batch_size: int = 256,
    ranks: Ranks = ALONE,
    progress: Progress = SILENT,
) -> Accuracy:
    """The accuracy of a model or a defence on labelled images.

    ``x`` and ``y`` are images (NCHW, uint8 or float in [0, 1]) and labels; or ``x`` alone is a
    Dataset of (image, label).

    A defence draws for each point from (its seed, ``stream``, the point's ``index``), so the
    result does not depend on the batch size beyond rounding, and is the same every time. A frozen
    defence (``fresh=False``) is measured on its frozen draws, unless ``index`` is given.

    With ``ranks`` several processes share the points, each calls this with all of them, and each
    gets the counts of all.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> evaluate(model, torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)).total
    8
    """
    return answers(
        classifier,
        x,
        y,
        index=index,
        stream=stream,
        batch_size=batch_size,
        ranks=ranks,
        progress=progress,
    ).accuracy


def answers(
    classifier: nn.Module,
    x: Tensor | Iterable[Any],
    y: Tensor | None = None,
    *,
    index: Tensor | None = None,
    stream: str | int = "evaluate",
    batch_size: int = 256,
    ranks: Ranks = ALONE,
    progress: Progress = SILENT,
) -> Answers:
    """What ``evaluate`` counts, point by point."""
    x, y = as_tensors(x, y)
    check_stored_images(x, what="x")
    y = check_labels(y, count=x.shape[0])
    check_int(batch_size, what="batch_size", least=1)
    frozen = index is None and isinstance(classifier, StochasticModule) and not classifier.fresh
    index = torch.arange(x.shape[0]) if index is None else index
    index = check_index(index, count=x.shape[0], device=x.device)
    device = device_of(classifier)
    kind = x.dtype if x.is_floating_point() else dtype_of(classifier)
    base = classifier.model if isinstance(classifier, StochasticModule) else classifier
    prepared = 0
    if isinstance(classifier, StochasticModule):
        classifier.prepare()
        prepared = classifier.passes_once
    with torch.no_grad(), count_passes(base) as passes, progress.task("evaluate", len(y)) as task:

        def answer(rows: Tensor) -> tuple[Tensor, Tensor]:
            images = as_pixels(x[rows].to(device), kind)
            if isinstance(classifier, StochasticModule):
                positions = None if frozen else index[rows]
                out = classifier(images, index=positions, stream=stream)
            else:
                out = logits_of(classifier, images)
            check_labels(y[rows], count=len(rows), classes=out.shape[1])
            task.advance(len(rows) * ranks.size)
            best = out.topk(2).values if out.shape[1] > 1 else out.new_zeros(len(out), 2)
            return out.argmax(1).cpu(), (best[:, 0] - best[:, 1]).cpu()

        parts = ranks.share(torch.arange(len(y)).split(batch_size), answer)
        forward = ranks.total(passes.forward)
    labels, margins = (torch.cat(column) for column in zip(*parts, strict=True))
    return Answers(labels, margins, labels == y.cpu(), forward / len(y), prepared)
