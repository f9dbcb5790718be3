"""Attacks on detection: misclassified examples whose score stays under the threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.losses import get_loss
from mixup_inference.attacks.options import Count, Natural, NotNegative, Range
from mixup_inference.attacks.pgd import ascend
from mixup_inference.attacks.query import QueryModel
from mixup_inference.attacks.success import judge
from mixup_inference.attacks.threat_model import Schedule, gradient_ascent, gradient_of, per_sample
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.gap import gap
from mixup_inference.detection import Detector
from mixup_inference.errors import InputError
from mixup_inference.validation import check_labels

Method = Literal["selective", "orthogonal", "lagrangian"]

#: Answers of MI-Combined that decide between the two ways to fool it.
CHOOSING = 5


@attack(
    "detector-aware",
    queries=lambda call: call.steps * (1 if isinstance(call.defense, Detector) else 2),
    prepare=lambda call: _gate(call.defense),
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
    plan = _Plan(batch.prepared, sizes, draws, method, weight, margin)
    if isinstance(batch.model.module, CombinedInference):
        return _either(plan, batch)
    return plan.evade(batch)


@dataclass(frozen=True)
class _Gate:
    """An input passes if its score does not exceed the threshold."""

    detector: Detector | CombinedInference
    threshold: float

    def query(
        self, batch: Batch, image: Tensor, draws: int, *stream: str | int
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of F, shape (points, 1, classes), and the score."""
        attacked, name = batch.model.module, repr(("attack", batch.seed, *stream))
        if isinstance(self.detector, Detector):
            before, score = self.detector.examine(
                image, index=batch.index, stream=name, draws=draws, through=attacked
            )
        else:
            assert isinstance(attacked, CombinedInference)
            before, score = _gap_of(attacked, image, batch.index, name, draws)
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


def _gate(detector: Detector | CombinedInference) -> _Gate:
    if isinstance(detector, Detector):
        return _Gate(detector, detector.calibrated())
    if isinstance(detector, CombinedInference):
        return _Gate(detector, detector.threshold)
    raise InputError(
        "detector_aware attacks a Detector or a CombinedInference; saw "
        f"{type(detector).__name__}. For other defences use eot_pgd."
    )


@dataclass(frozen=True)
class _Plan:
    """How to pass the gate."""

    gate: _Gate
    sizes: list[float]
    draws: int
    method: Method
    weight: float
    margin: float

    def evade(self, batch: Batch) -> BatchResult:
        """Find examples that are misclassified and not detected."""
        best, highest = batch.x, torch.full_like(batch.x[:, 0, 0, 0], -torch.inf)
        is_wrong = torch.zeros_like(highest, dtype=torch.bool)  # whether F is, at the best
        losses: list[Tensor] = []

        def keep(image: Tensor, lead: Tensor, score: Tensor) -> None:
            nonlocal best, highest, is_wrong
            wrong = lead > self.margin
            rank = torch.where(wrong, -score, lead)
            higher = torch.where(wrong == is_wrong, rank > highest, wrong)  # wrong ones first
            best = torch.where(per_sample(higher), image, best)
            highest, is_wrong = torch.where(higher, rank, highest), is_wrong | wrong

        def gradient(image: Tensor, number: int) -> Tensor:
            leaf = image.detach().requires_grad_()
            with torch.enable_grad():
                log_p, score = self.gate.query(batch, leaf, self.draws, "gap", number)
                wrong = get_loss("ce")(log_p, batch.y, batch.target)
                lead = get_loss("margin")(log_p.detach(), batch.y, batch.target)
                direction = self._direction(leaf, wrong, -score, lead > self.margin)
            keep(image, lead, score.detach())
            losses.append(self._loss(lead, score.detach()))
            batch.tick()
            return direction

        image = batch.start()
        for iterate in gradient_ascent(batch.x, image, batch.threat_model, gradient, self.sizes):
            image = iterate
        keep(image, *self._both(batch, image, "gap", len(self.sizes)))
        last = self._loss(*self._both(batch, best, "last gap"))
        return BatchResult(best, last, torch.stack([*losses, last]))

    def _both(self, batch: Batch, image: Tensor, *stream: str | int) -> tuple[Tensor, Tensor]:
        """Return by how much a wrong class leads, and the gap."""
        log_p, score = self.gate.query(batch, image, self.draws, *stream)
        return get_loss("margin")(log_p, batch.y, batch.target), score

    def _loss(self, lead: Tensor, score: Tensor) -> Tensor:
        """Return a loss that is positive where F is wrong and the input passes."""
        return torch.minimum(lead, self.gate.threshold - score)

    def _direction(self, leaf: Tensor, wrong: Tensor, hidden: Tensor, is_wrong: Tensor) -> Tensor:
        """Return the direction of a step; ``wrong`` and ``hidden`` are the two goals to raise."""
        if self.method == "lagrangian":
            return gradient_of((wrong + self.weight * hidden).sum(), leaf)
        if self.method == "selective":
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


def _either(plan: _Plan, batch: Batch) -> BatchResult:
    """Evade detection, or be detected and fool MI-OL: whichever fools more, point by point."""
    combined = batch.model.module
    assert isinstance(combined, CombinedInference)
    answering = batch  # a frozen one answers with its own draws: attack its whole answer
    if combined.fresh:
        answering = replace(batch, model=QueryModel(combined.defender, batch.x, seed=batch.seed))
    ways = (
        plan.evade(batch).examples,
        ascend(answering, batch.start(), plan.sizes, "ce", plan.draws).examples,
    )
    stream = repr(("attack", batch.seed, "choose"))

    def strength(way: Tensor) -> Tensor:
        """Count the fooled answers; ties are broken by the lead of a wrong class."""
        wrong = judge(combined, way, batch.y, repeats=CHOOSING, index=batch.index, stream=stream)
        lead = batch.loss(way, "margin", plan.draws, "choose")
        return wrong.sum(1).to(lead) + lead / 2

    hidden, seen = map(strength, ways)
    examples = torch.where(per_sample(seen > hidden), ways[1], ways[0])
    first = batch.loss(batch.x, "margin", plan.draws, "first")
    last = batch.loss(examples, "margin", plan.draws, "last")
    return BatchResult(examples, last, torch.stack([first, last]))
