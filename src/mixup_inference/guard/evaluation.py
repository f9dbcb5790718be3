"""A guard under attack: an attack that ignores it, and one that knows it (Section 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixup_inference.attacks import detector_aware, pgd
from mixup_inference.detection import MixupDetector
from mixup_inference.experiments.spec.fields import Count, Positive, Table
from mixup_inference.metrics.accuracy import wilson
from mixup_inference.models.call import dtype_of
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import as_pixels, check_labels

if TYPE_CHECKING:
    from mixup_inference.defenses import CombinedInference

#: How often each point is answered, with fresh draws; shares are means over the answers.
REPEATS = 5


class Outcome(Table):
    """Shares of the points, clean or under an attack.

    Attributes:
        undefended: F is right.
        answered: the guard's answer is right.
        flagged: the guard flags the point.
        evaded: F is wrong, and the guard does not notice.
    """

    undefended: float
    answered: float
    flagged: float
    evaded: float


class Evaluation(Table):
    """What a guard does on clean points, under an oblivious and under an adaptive attack.

    Attributes:
        points: clean test images.
        eps: the largest change of a pixel.
        steps: of the adaptive attack; the oblivious one, PGD, makes 10.
        draws: over which the adaptive attack averages in each step.
        clean: outcome without an attack.
        oblivious: PGD on F, which ignores the guard.
        adaptive: an attack that makes F wrong and keeps the score low (``detector_aware``).
    """

    points: Count
    eps: Positive
    steps: Count
    draws: Count
    clean: Outcome
    oblivious: Outcome
    adaptive: Outcome

    def interval(self, share: float) -> tuple[float, float]:
        """The 95% interval of a share of the points."""
        return wilson(share * self.points, self.points)


def evaluate_guard(
    inference: CombinedInference,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = 8 / 255,
    steps: int = 50,
    draws: int = 10,
    batch_size: int = 64,
    progress: Progress = SILENT,
) -> Evaluation:
    """Attack the model alone, and the model with its detector.

    Args:
        inference: MI-Combined with the threshold of the guard.
        x: clean test images, NCHW, uint8 or float in [0, 1].
        y: their labels.
        eps: the largest change of a pixel; steps are a quarter of it.
        steps: of the adaptive attack.
        draws: over which it averages in each step.
        batch_size: images under attack at once.
        progress: where to report.
    """
    x, y = as_pixels(x, dtype_of(inference.model)), check_labels(y, count=len(x))
    mi = inference.detector
    detector = MixupDetector(
        mi.model, mi.pool, lam=mi.lam, threshold=inference.threshold, draws=mi.draws,
        sampling=mi.sampling, control_variate=mi.control_variate, engine=mi.engine,
    )  # fmt: skip
    common: dict[str, Any] = {"eps": eps, "step": eps / 4, "batch_size": batch_size}
    oblivious = pgd(inference.model, x, y, steps=10, progress=progress, **common)
    adaptive = detector_aware(detector, x, y, steps=steps, draws=draws, progress=progress, **common)
    found = {
        name: _outcome(inference, images, y)
        for name, images in (
            ("clean", x),
            ("oblivious", oblivious),
            ("adaptive", adaptive.examples),
        )
    }
    return Evaluation(points=len(x), eps=eps, steps=steps, draws=draws, **found)


def _outcome(inference: CombinedInference, x: Tensor, y: Tensor) -> Outcome:
    index = torch.arange(len(x))
    sums = torch.zeros(4, dtype=torch.float64)
    for repeat in range(REPEATS):
        found = inference.examine(x, index=index, stream=f"evaluate {repeat}")
        right = found.before.argmax(1) == y
        shares = (
            right,
            found.answer.argmax(1) == y,
            found.detected,
            ~right & ~found.detected,
        )
        sums += torch.stack([share.double().mean() for share in shares])
    means = (sums / REPEATS).tolist()
    return Outcome(**dict(zip(("undefended", "answered", "flagged", "evaded"), means, strict=True)))
