"""Success of adversarial examples, on fresh draws of the whole defence that no attack has seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixup_inference.attacks.query import QueryModel, seeded
from mixup_inference.defenses import Defense
from mixup_inference.detection import Detector
from mixup_inference.draws import derive_seed
from mixup_inference.models.call import logits_of
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import check_images, check_index, check_int, check_labels


@dataclass(frozen=True)
class Points:
    """Images, labels, and positions in their data set, checked and on one device."""

    x: Tensor
    y: Tensor
    index: Tensor


def check_points(x: Tensor, y: Tensor, index: Tensor | None = None) -> Points:
    """Check images and labels; positions are 0, 1, 2, ... by default."""
    check_images(x)
    y = check_labels(y, count=len(x)).to(x.device)
    index = torch.arange(len(x), device=x.device) if index is None else index
    return Points(x.detach(), y, check_index(index, count=len(x), device=x.device))


def judge(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    repeats: int = 5,
    index: Tensor | None = None,
    stream: str = "judge",
    batch_size: int = 256,
    ranks: Ranks = ALONE,
    progress: Progress = SILENT,
) -> Tensor:
    """Whether each point fools the defence, in each of several fresh answers: (points, repeats).

    A ``Detector`` is fooled by a point that its model misclassifies and that it does not
    flag. A defence without randomness, and a frozen one, is asked once.

    Streams of different names share no draws, and none shares any with an attack's. So examples
    can be chosen on one stream and reported on another. With ``ranks`` several processes share the
    points, and each gets all answers.
    """
    points = check_points(x, y, index)
    x, y, index = points.x, points.y, points.index
    repeats = check_int(repeats, what="repeats", least=1)
    check_int(batch_size, what="batch_size", least=1)
    if isinstance(defense, Detector):
        defense.calibrated()
        kind = "ours" if defense.is_random else "fixed"
    else:
        kind = QueryModel(defense, x).kind
    if kind in ("frozen", "fixed"):
        repeats = 1
    elif kind == "call":
        batch_size = 1  # a batch would share its draw, and its points would not be independent
    with torch.no_grad(), progress.task("judge", total=repeats * len(x)) as task:

        def fooled(rows: Tensor) -> Tensor:
            out = torch.zeros(len(rows), repeats, dtype=torch.bool)
            for repeat in range(repeats):
                wrong = _fools(defense, x[rows], y[rows], index[rows], f"{stream} {repeat}")
                out[:, repeat] = wrong.cpu()
                task.advance(len(rows) * ranks.size)
            return out

        return torch.cat(ranks.share(torch.arange(len(x)).split(batch_size), fooled))


def _fools(defense: nn.Module, x: Tensor, y: Tensor, index: Tensor, stream: str) -> Tensor:
    """Whether each point fools one answer."""
    if isinstance(defense, Detector):
        flagged = defense.detect(x, index=index, stream=stream)
        return (logits_of(defense.model, x).argmax(1) != y) & ~flagged
    if isinstance(defense, Defense):
        out: Tensor = (
            defense(x, index=index, stream=stream) if defense.fresh else logits_of(defense, x)
        )
    else:
        with seeded(derive_seed(0, stream, int(index[0])), defense, x):
            out = logits_of(defense, x, as_it_is=True)
    return out.argmax(1) != y
