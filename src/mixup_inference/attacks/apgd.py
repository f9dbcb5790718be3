"""Auto-PGD (Croce and Hein, 2020) on the expectation over draws: step sizes adapt themselves."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any, Literal, cast

import torch
from torch import Tensor

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.options import Count, Natural
from mixup_inference.attacks.threat_model import length, per_sample
from mixup_inference.defenses import mean_prediction
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.validation import check_images, check_labels

APGDLoss = Literal["ce", "dlr"]


def _checked_start(call: Any) -> Tensor | None:
    """Check the given start."""
    if call.start is None:
        return None
    if check_images(call.start, what="start").shape != call.x.shape:
        raise InputError(
            f"start must have the shape of x, {tuple(call.x.shape)}; saw {tuple(call.start.shape)}."
        )
    return cast("Tensor", call.start.to(call.x))


@attack(
    "APGD",
    queries=lambda call: call.restarts * max(1, call.target_classes) * (call.steps + 1),
    prepare=_checked_start,
)
def apgd_eot(
    batch: Batch,
    *,
    steps: Natural = 50,
    draws: Count = 10,
    loss: APGDLoss = "ce",
    restarts: Count = 1,
    fresh: bool = True,
    target_classes: Natural = 0,
    start: Tensor | None = None,
) -> BatchResult:
    """Auto-PGD through the whole defence: every loss and gradient is an average over draws.

    Two noisy losses are compared only on the same draws, with which neither image was made: at
    each step the last iterate and the best one are evaluated again on the draws of the new one, so
    no iterate stays the best because it was lucky once. The result is the best iterate of each run
    or its last, whichever is better on draws that no run has seen; its ``loss`` comes from yet
    others. Each run takes steps + 1 gradients; the re-evaluation costs two forward passes a step,
    unless the draws are the same throughout or there are none.

    On a model without randomness this is AutoAttack's APGD, with two exceptions: the first step is
    compared with its start, as in the paper, where AutoAttack's code compares with zero; and the
    iterate with the highest loss is returned, where AutoAttack returns any that fools.

    Args:
        batch: the points under attack.
        steps: how many; the first has size 2 eps, later ones are halved where progress stops.
        draws: K, over which everything is averaged.
        loss: the objective: "ce" of the mean prediction, or "dlr", see ``LOSSES``.
        restarts: how many random starts.
        fresh: new draws at every step; False keeps the same draws throughout.
        target_classes: if not 0, one run (per restart) towards each of so many wrong classes, the
            most likely ones at x, on the targeted "dlr" whatever ``loss`` is (with two or three
            classes on "log-margin"); the runs are compared by "log-margin", which is then also the
            loss of the result.
        start: where the first restart begins, instead of at a random point.
        **options: see ``AttackOptions``.
    """
    if target_classes and batch.target is not None:
        raise InputError("target_classes chooses the targets itself; leave out targeted, targets.")
    goals, objective, compared = [batch], str(loss), str(loss)
    if target_classes:
        goals, objective = _towards_each(batch, target_classes, draws)
        compared = "log-margin"
    best: BatchResult | None = None
    for number, (goal, restart) in enumerate(product(goals, range(restarts))):
        begin = _random_start(batch, number)
        if start is not None and restart == 0:
            begin = batch.threat_model.project(batch.x, batch.prepared[batch.rows])
        images, trace = _ascend(goal, begin, steps, objective, draws, number, fresh=fresh)
        for image in images:
            value = batch.loss(image, compared, draws, "choose")
            best = BatchResult(image, value, trace).better(best)
    assert best is not None
    return best._replace(loss=batch.loss(best.examples, compared, draws, "last"))


def _ascend(
    batch: Batch, start: Tensor, steps: int, loss: str, draws: int, number: int, *, fresh: bool
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Run APGD (Algorithm 1): return the best iterate and the last, and the losses of all."""
    paired = fresh and batch.model.is_random
    x, threat_model, windows = batch.x, batch.threat_model, _windows(steps)
    image = last = previous = best = start
    now, gradient = batch.loss_and_gradient(start, loss, draws, "apgd", number, 0)
    best_gradient, best_loss, trace = gradient, now, [now]
    size = torch.full_like(now, 2 * batch.threat_model.eps)
    none = torch.zeros_like(now, dtype=torch.bool)
    rises, improved, halved = torch.zeros_like(now), none, ~none
    for step in range(1, steps + 1):
        stream = ("apgd", number, step if fresh else 0)
        ahead = threat_model.project(x, threat_model.step(image, gradient, size))
        if step > 1:  # with a quarter of the last displacement as momentum
            ahead = image + 0.75 * (ahead - image) + 0.25 * (image - previous)
            ahead = threat_model.project(x, ahead)
        image, previous = ahead, image
        now, gradient = batch.loss_and_gradient(image, loss, draws, *stream)
        before = trace[-1]
        if paired:
            before, best_loss = (batch.loss(old, loss, draws, *stream) for old in (last, best))
        wins = now > best_loss
        best = torch.where(per_sample(wins), image, best)
        best_gradient = torch.where(per_sample(wins), gradient, best_gradient)
        best_loss = torch.where(wins, now, best_loss)
        rises, improved, last = rises + (now > before), improved | wins, image
        trace.append(now)
        if step in windows:
            # Condition 1: too few steps went up. Condition 2: same size and same best since.
            halve = (rises <= 0.75 * windows[step]) | ~(halved | improved)
            size = torch.where(halve, size / 2, size)
            image = torch.where(per_sample(halve), best, image)
            gradient = torch.where(per_sample(halve), best_gradient, gradient)
            rises, improved, halved = torch.zeros_like(now), none, halve
    return (best, last), torch.stack(trace)


def _windows(steps: int) -> dict[int, int]:
    """Return the checkpoints at which step sizes may be halved, and the steps since the last one.

    As AutoAttack counts them, in whole steps.

    >>> _windows(50)
    {11: 11, 21: 10, 30: 9, 38: 8, 45: 7}
    """
    window, at, out = max(int(0.22 * steps), 1), 0, {}
    while (at := at + window) <= steps:
        out[at] = window
        window = max(window - max(int(0.03 * steps), 1), int(0.06 * steps), 1)
    return out


def _random_start(batch: Batch, number: int) -> Tensor:
    """Draw a random point of the surface of the ball: AutoAttack's start."""
    draws = Draws.once(make_key(batch.seed, "apgd start", number), batch.index)
    shape = tuple(batch.x.shape[1:])
    if batch.threat_model.norm == "linf":
        delta = 2 * draws.uniform_block(0, shape)[:, 0].to(batch.x) - 1
        delta = delta / per_sample(delta.abs().flatten(1).amax(1))
    else:
        delta = draws.normal(0, shape)[:, 0].to(batch.x)
        delta = delta / per_sample(length(delta))
    return batch.threat_model.project(batch.x, batch.x + batch.threat_model.eps * delta)


def _towards_each(batch: Batch, many: int, draws: int) -> tuple[list[Batch], str]:
    """Return the batch with each of the most likely wrong classes at x as target, and the loss.

    With three classes the targeted DLR is constant while y is first and the target last: there,
    and with two, the objective is the margin itself.
    """
    z = mean_prediction(batch.model.log_probs(batch.x, batch.index, draws, "classes"))
    classes = z.shape[1]
    if classes < 2:
        raise InputError("target_classes needs a model with at least two classes; saw one.")
    check_labels(batch.y, count=len(batch.y), classes=classes)
    wrong = z.scatter(1, batch.y[:, None], -torch.inf).topk(min(many, classes - 1)).indices
    goals = [dataclasses.replace(batch, target=target) for target in wrong.unbind(1)]
    return goals, "dlr" if classes > 3 else "log-margin"
