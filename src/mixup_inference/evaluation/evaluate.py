"""Accuracy as a count with an interval, and what it cost in forward passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks.query import seeded
from mixup_inference.datasets import as_tensors
from mixup_inference.defenses import Defense
from mixup_inference.draws import derive_seed
from mixup_inference.metrics.accuracy import Accuracy
from mixup_inference.models.call import count_passes, device_of, dtype_of, logits_of
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import (
    as_pixels,
    check_index,
    check_int,
    check_labels,
    check_stored_images,
)


@dataclass(frozen=True)
class Answers:
    """What a classifier said about labelled points, and how many it has right.

    ``labels``: of each point. ``margins``: by how much the logarithm of its probability is above
    that of the second likeliest.
    """

    labels: Tensor
    margins: Tensor
    accuracy: Accuracy


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
    defence (``fresh=False``) is measured on its frozen draws, unless ``index`` is given. A random
    module that is no ``Defense`` must draw from the global generators; they are seeded for each
    batch, and put back.

    With ``ranks`` several processes share the points, each calls this with all of them, and each
    gets the counts of all.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> evaluate(model, torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)).total
    8
    """
    return answers(classifier, x, y, index, stream, batch_size, ranks, progress).accuracy


def predicted_labels(model: nn.Module, x: Tensor, *, batch_size: int) -> Tensor:
    """The labels that a classifier predicts, on the CPU."""
    with torch.no_grad():
        parts = [logits_of(model, part.to(device_of(model))) for part in x.split(batch_size)]
    return torch.cat(parts).argmax(1).cpu()


def answers(
    classifier: nn.Module,
    x: Tensor | Iterable[Any],
    y: Tensor | None,
    index: Tensor | None,
    stream: str | int,
    batch_size: int,
    ranks: Ranks,
    progress: Progress,
) -> Answers:
    """What ``evaluate`` counts, point by point."""
    x, y = as_tensors(x, y)
    check_stored_images(x, what="x")
    y = check_labels(y, count=x.shape[0])
    check_int(batch_size, what="batch_size", least=1)
    frozen = index is None and isinstance(classifier, Defense) and not classifier.fresh
    index = torch.arange(x.shape[0]) if index is None else index
    index = check_index(index, count=x.shape[0], device=x.device)
    device = device_of(classifier)
    kind = x.dtype if x.is_floating_point() else dtype_of(classifier)
    base = classifier.model if isinstance(classifier, Defense) else classifier
    if isinstance(classifier, Defense):
        classifier.prepare()
    with torch.no_grad(), count_passes(base) as passes, progress.task("evaluate", len(y)) as task:

        def answer(rows: Tensor) -> tuple[Tensor, Tensor]:
            images = as_pixels(x[rows].to(device), kind)
            if isinstance(classifier, Defense):
                positions = None if frozen else index[rows]
                out = classifier(images, index=positions, stream=stream)
            else:
                with seeded(derive_seed(0, stream, int(index[rows[0]])), classifier, images):
                    out = logits_of(classifier, images, as_it_is=True)
            check_labels(y[rows], count=len(rows), classes=out.shape[1])
            task.advance(len(rows) * ranks.size)
            best = out.topk(2).values if out.shape[1] > 1 else out.new_zeros(len(out), 2)
            return out.argmax(1).cpu(), (best[:, 0] - best[:, 1]).cpu()

        parts = ranks.share(torch.arange(len(y)).split(batch_size), answer)
        forward = ranks.total(passes.forward)
    labels, margins = (torch.cat(column) for column in zip(*parts, strict=True))
    prepared = classifier.passes_once if isinstance(classifier, Defense) else 0
    correct = int((labels == y.cpu()).sum())
    return Answers(labels, margins, Accuracy(correct, len(y), forward / len(y), prepared))
