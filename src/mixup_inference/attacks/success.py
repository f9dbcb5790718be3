"""Judging examples: fresh draws of the whole defence, which no attack has seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixup_inference.attacks.query import Victim, seeded
from mixup_inference.defenses import Defense
from mixup_inference.detection import MixupDetector
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError
from mixup_inference.models.call import logits_of
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import check_images, check_index, check_int, check_labels


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

    A ``MixupDetector`` is fooled by a point that its model has wrong and that it does not flag.
    A defence without randomness, and a frozen one, is asked once.

    Streams of different names share no draws, and none shares any with an attack's. So examples
    can be chosen by one stream and reported by another. With ``ranks`` several processes share the
    points, and each gets all answers.
    """
    check_images(x)
    y = check_labels(y, count=len(x)).to(x.device)
    index = torch.arange(len(x), device=x.device) if index is None else index
    index = check_index(index, count=len(x), device=x.device)
    repeats = check_int(repeats, what="repeats", least=1)
    detector = defense if isinstance(defense, MixupDetector) else None
    if detector is not None and detector.threshold is None:
        raise InputError("the detector has no threshold; call calibrate(x_clean) first.")
    victim = None if detector is not None else Victim(defense, x)
    repeats = repeats if victim is None or victim.is_random else 1
    if victim is not None and victim.kind == "call":
        batch_size = 1  # a batch would share its draw, and its points would not be independent
    check_int(batch_size, what="batch_size", least=1)
    with torch.no_grad(), progress.task("judge", total=repeats * len(x)) as task:

        def fooled(rows: Tensor) -> Tensor:
            out = torch.zeros(len(rows), repeats, dtype=torch.bool)
            for repeat in range(repeats):
                name = f"{stream} {repeat}"
                if detector is not None:
                    wrong = _undetected(detector, x[rows], y[rows], index[rows], name)
                else:
                    wrong = _labels(defense, x[rows], index[rows], name) != y[rows]
                out[:, repeat] = wrong.cpu()
                task.advance(len(rows) * ranks.size)
            return out

        return torch.cat(ranks.share(torch.arange(len(x)).split(batch_size), fooled))


def _labels(defense: nn.Module, x: Tensor, index: Tensor, stream: str) -> Tensor:
    if isinstance(defense, Defense):
        out: Tensor = (
            defense(x, index=index, stream=stream) if defense.fresh else logits_of(defense, x)
        )
        return out.argmax(1)
    with seeded(derive_seed(0, stream, int(index[0])), defense, x):
        return logits_of(defense, x, as_it_is=True).argmax(1)


def _undetected(
    detector: MixupDetector, x: Tensor, y: Tensor, index: Tensor, stream: str
) -> Tensor:
    flagged = detector.detect(x, index=index, stream=stream)
    return (logits_of(detector.model, x).argmax(1) != y) & ~flagged
