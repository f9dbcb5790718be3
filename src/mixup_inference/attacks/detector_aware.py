"""Attacks on detection: misclassified examples whose gap stays under the threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.losses import cross_entropy
from mixup_inference.attacks.losses import margin as lead_of
from mixup_inference.attacks.options import Count, Natural, NotNegative, Range
from mixup_inference.attacks.pgd import ascend
from mixup_inference.attacks.query import QueryModel
from mixup_inference.attacks.success import judge
from mixup_inference.attacks.threat_model import Schedule, gradient_ascent, gradient_of, per_sample
from mixup_inference.defenses import CombinedInference
from mixup_inference.defenses.gap import gap
from mixup_inference.detection import Detector
from mixup_inference.errors import InputError
from mixup_inference.validation import check_labels

Method = Literal["selective", "orthogonal", "lagrangian"]

#: Answers of MI-Combined that decide between the two ways to fool it.
CHOOSING = 5


def _checked(call: Any) -> Detector | CombinedInference:
    """Return the detector under attack: an input passes if its score is not above the threshold."""
    detector = call.defense
    if not isinstance(detector, Detector | CombinedInference):
        raise InputError(
            "detector_aware attacks a Detector or a CombinedInference; saw "
            f"{type(detector).__name__}. For other defences use eot_pgd."
        )
    if isinstance(detector, Detector):
        detector.calibrated()  # or it has no threshold
    return detector


@attack(
    "detector-aware",
    queries=lambda call: call.steps * (1 if isinstance(call.defense, Detector) else 2),
    prepare=_checked,
)
def detector_aware(
    batch: Batch,
    *,
    steps: Natural = 100,
    step: NotNegative | None = None,
    draws: Count = 10,
    method: Method = "selective",
    weight: NotNegative = 1.0,
    margin: Annotated[float, Range(-1, 1)] = 0.0,
    schedule: Schedule = "constant",
) -> BatchResult:
    """Examples that F misclassifies and whose score stays under the threshold.

    It attacks a ``Detector`` with any score, or MI-Combined, whose score is MI-PL's gap. Each step
    has two gradients: that of F's cross-entropy at x, and that of the score, over K fresh draws if
    it is random, which starts from F's prediction at the iterate. The result is the iterate with
    the lowest score among those that F misclassifies; if there is none, the one that came nearest.
    The lowest of many estimates is biased, so the loss is estimated on other draws.

    For a detector, ``fooled`` means "F is wrong and the input is not flagged", so ``success`` is
    that rate at the calibrated threshold. The loss is the smaller of two distances: of a wrong
    class's lead to 0, and of the score to the threshold.

    MI-Combined can be fooled in a second way: detected, with MI-OL wrong. That one is ``eot_pgd``
    on MI-OL; of both, each point keeps the one that fools more of five answers on draws of their
    own, of equals the one where a wrong class leads by more. The loss is then the lead of a wrong
    class in the answer, at x and at the end.

    Args:
        batch: the points under attack.
        steps: how many, for each of the two ways.
        step: size of a step; a quarter of eps by default.
        draws: K, over which the score is averaged at every step.
        method: which way to step. "selective": along the cross-entropy until F is wrong, then
            down the score (Bryniarski et al., 2021). "orthogonal": the same, without the component
            against the other goal. (They drop the component along it as well; here that would keep
            F right, as a lower confidence is both a smaller gap and a larger cross-entropy.)
            "lagrangian": along cross-entropy - weight * score.
        weight: of the score in "lagrangian".
        margin: by how much a wrong class must lead, in probability, for F to count as wrong.
        schedule: of the step size.
        **options: see ``AttackOptions``.
    """
    sizes = batch.step_sizes(step, steps, schedule)
    evading = _evade(batch, sizes, draws, method, weight, margin)
    if isinstance(batch.model.module, CombinedInference):
        return _either(batch, evading.examples, sizes, draws)
    return evading


def _evade(
    batch: Batch, sizes: list[float], draws: int, method: Method, weight: float, margin: float
) -> BatchResult:
    """Find examples that are misclassified and not detected."""
    best, highest = batch.x, torch.full_like(batch.x[:, 0, 0, 0], -torch.inf)
    best_is_wrong = torch.zeros_like(highest, dtype=torch.bool)
    losses: list[Tensor] = []

    def keep(image: Tensor, log_p: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the best images; return where F is wrong, and a loss: positive if not detected."""
        nonlocal best, highest, best_is_wrong
        lead = lead_of(log_p, batch.y, batch.target)
        wrong = lead > margin
        rank = torch.where(wrong, -score, lead)
        higher = torch.where(wrong == best_is_wrong, rank > highest, wrong)  # wrong ones first
        best = torch.where(per_sample(higher), image, best)
        highest, best_is_wrong = torch.where(higher, rank, highest), best_is_wrong | wrong
        return wrong, torch.minimum(lead, batch.prepared.threshold - score)

    def gradient(image: Tensor, number: int) -> Tensor:
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            log_p, score = _query(batch, leaf, draws, "gap", number)
            wrong = cross_entropy(log_p, batch.y, batch.target)
            is_wrong, loss = keep(image, log_p.detach(), score.detach())
            direction = _direction(method, weight, leaf, wrong, -score, is_wrong)
        losses.append(loss)
        batch.tick()
        return direction

    for image in gradient_ascent(batch.x, batch.start(), batch.threat_model, gradient, sizes):
        last = image
    keep(last, *_query(batch, last, draws, "gap", len(sizes)))
    _, loss = keep(best, *_query(batch, best, draws, "last gap"))
    return BatchResult(best, loss, torch.stack([*losses, loss]))


def _query(batch: Batch, image: Tensor, draws: int, *stream: str | int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of F, shape (points, 1, classes), and the score over the draws."""
    attacked, name = batch.model.module, repr(("attack", batch.seed, *stream))
    if isinstance(attacked, CombinedInference):
        before, score = _gap_of(attacked, image, batch.index, name, draws)
    else:
        before, score = batch.prepared.examine(
            image, index=batch.index, stream=name, draws=draws, through=attacked
        )
    check_labels(batch.y, count=len(image), classes=before.shape[1])
    return before[:, None], score.to(image.dtype)


def _gap_of(
    combined: CombinedInference, image: Tensor, index: Tensor, stream: str, draws: int
) -> tuple[Tensor, Tensor]:
    """Log F(x) and MI-PL's gap; that which decides its answer, if it is frozen."""
    mi = combined.detector
    if combined.fresh:
        numbers = mi.numbers(image, index, stream, draws=draws)
    else:
        numbers, _ = combined.part_numbers(image)
    before = mi.base_log_probs(image)
    after = mi.average(image, before.detach().argmax(1), numbers)
    return before, gap(before, after, combined.convention)


def _direction(
    method: Method, weight: float, leaf: Tensor, wrong: Tensor, hidden: Tensor, is_wrong: Tensor
) -> Tensor:
    """Return the direction of a step; ``wrong`` and ``hidden`` are the two goals to raise."""
    if method == "lagrangian":
        return gradient_of((wrong + weight * hidden).sum(), leaf)
    if method == "selective":
        return gradient_of(torch.where(is_wrong, hidden, wrong).sum(), leaf)
    first = gradient_of(wrong.sum(), leaf, retain_graph=True)
    second = gradient_of(hidden.sum(), leaf)
    rows = per_sample(is_wrong)
    return without_conflict(torch.where(rows, second, first), torch.where(rows, first, second))


def without_conflict(direction: Tensor, other: Tensor) -> Tensor:
    """Remove the component against the other direction, for each sample: never downhill there.

    >>> one, other = torch.tensor([[[[1.0, 1.0]]]]), torch.tensor([[[[-2.0, 0.0]]]])
    >>> without_conflict(one, other).flatten().tolist()
    [0.0, 1.0]
    """
    along = (direction * other).flatten(1).sum(1).clamp(max=0)
    square = other.square().flatten(1).sum(1).clamp(min=torch.finfo(other.dtype).tiny)
    return direction - per_sample(along / square) * other


def _either(batch: Batch, evading: Tensor, sizes: list[float], draws: int) -> BatchResult:
    """Evade detection, or be detected and fool MI-OL: whichever fools more, point by point."""
    combined = batch.model.module
    assert isinstance(combined, CombinedInference)
    answering = batch  # a frozen one answers with its own draws: attack its whole answer
    if combined.fresh:
        answering = replace(batch, model=QueryModel(combined.defender, batch.x, seed=batch.seed))
    detected = ascend(answering, batch.start(), sizes, "ce", draws).examples
    stream = repr(("attack", batch.seed, "choose"))

    def strength(way: Tensor) -> Tensor:
        """Count the fooled answers; ties are broken by the lead of a wrong class."""
        wrong = judge(combined, way, batch.y, repeats=CHOOSING, index=batch.index, stream=stream)
        lead = batch.loss(way, "margin", draws, "choose")
        return wrong.sum(1).to(lead) + lead / 2

    stronger = strength(detected) > strength(evading)
    examples = torch.where(per_sample(stronger), detected, evading)
    first = batch.loss(batch.x, "margin", draws, "first")
    last = batch.loss(examples, "margin", draws, "last")
    return BatchResult(examples, last, torch.stack([first, last]))
