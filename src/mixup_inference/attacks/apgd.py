"""Auto-PGD (Croce and Hein, 2020) on the expectation over draws: step sizes that set themselves."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.attacks.base import Attacked, Batch, Common, Found, run
from mixup_inference.attacks.eot import better
from mixup_inference.attacks.threat_model import length, per_sample
from mixup_inference.defenses import mean_prediction
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.validation import check_images, check_int, check_labels

APGDLoss = Literal["ce", "dlr"]


def apgd_eot(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 50,
    draws: int = 10,
    loss: APGDLoss = "ce",
    restarts: int = 1,
    fresh: bool = True,
    target_classes: int = 0,
    start: Tensor | None = None,
    **options: Unpack[Common],
) -> Attacked:
    """Auto-PGD through the whole defence: every loss and gradient is an average over draws.

    Two noisy losses are only compared on the same draws, which neither of the two images was made
    with: at each step the last iterate and the best one are looked at again, on the draws of the
    new one. So nothing stays the best for having been lucky once. What is returned is the best of
    each run or its last iterate, whichever is better on draws that no run has seen; ``loss`` of
    the result comes from yet others. Each run takes steps + 1 gradients; the looks again cost two
    forward passes a step, unless the draws are the same throughout or there are none.

    On a model without randomness this is AutoAttack's APGD, but for two things: the first step is
    compared with its start, as in the paper, where AutoAttack's code compares with zero; and the
    iterate with the highest loss is returned, where AutoAttack returns any that fools.

    Args:
        defense: a defence, or any classifier.
        x: clean images in [0, 1].
        y: the true labels.
        steps: how many; the first has size 2 eps, later ones are halved where progress stops.
        draws: K, over which everything is averaged.
        loss: what is climbed: "ce" of the mean prediction, or "dlr", see ``LOSSES``.
        restarts: how many random starts.
        fresh: new draws at every step; False climbs and compares with the same draws throughout.
        target_classes: if not 0, one run (for each restart) towards each of so many wrong classes,
            the most likely ones at x, on the targeted "dlr" whatever ``loss`` says (of two or three
            classes on "log-margin"); the runs are compared by "log-margin", which is then the
            result's loss too.
        start: where the first restart begins, instead of at a random point.
        **options: see ``Common``.
    """
    if loss not in ("ce", "dlr"):
        raise unknown_name("loss", loss, ["ce", "dlr"])
    steps = check_int(steps, what="steps", least=0)
    restarts = check_int(restarts, what="restarts", least=1)
    many = check_int(target_classes, what="target_classes", least=0)
    if many and (options.get("targeted", False) or options.get("targets") is not None):
        raise InputError("target_classes chooses the targets itself; leave out targeted, targets.")
    if start is not None and check_images(start, what="start").shape != x.shape:
        raise InputError(
            f"start must have the shape of x, {tuple(x.shape)}; saw {tuple(start.shape)}."
        )
    compared = "log-margin" if many else loss
    done = 0  # how many rows of ``start`` earlier batches took

    def attack(batch: Batch) -> Found:
        nonlocal done
        rows, done = slice(done, done + len(batch.x)), done + len(batch.x)
        goals, climbed = _towards_each(batch, many, draws) if many else ([batch], loss)
        best: Found | None = None
        for number, (goal, restart) in enumerate(product(goals, range(restarts))):
            begin = _random_start(batch, number)
            if start is not None and restart == 0:
                begin = batch.ball.project(batch.x, start[rows].to(batch.x))
            images, trace = _ascend(goal, begin, steps, climbed, draws, number, fresh=fresh)
            for image in images:
                found = Found(image, batch.loss(image, compared, draws, "choose"), trace)
                best = found if best is None else better(best, found)
        assert best is not None
        return best._replace(loss=batch.loss(best.examples, compared, draws, "last"))

    ticks = restarts * max(1, many) * (steps + 1)
    return run("APGD", defense, x, y, attack, options, draws=draws, ticks=ticks)


def _ascend(
    batch: Batch, start: Tensor, steps: int, loss: str, draws: int, number: int, *, fresh: bool
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """One run (Algorithm 1): the best iterate and the last, and the losses of all."""
    paired = fresh and batch.victim.is_random
    windows = _windows(steps)
    image = last = previous = best = start
    gradient, now = batch.climb_loss(start, loss, draws, "apgd", number, 0)
    best_gradient, best_loss, trace = gradient, now, [now]
    size = torch.full_like(now, 2 * batch.ball.eps)
    none = torch.zeros_like(now, dtype=torch.bool)
    rises, improved, halved = torch.zeros_like(now), none, ~none
    for step in range(1, steps + 1):
        stream = ("apgd", number, step if fresh else 0)
        image, previous = _move(batch, image, previous, gradient, size, first=step == 1), image
        gradient, now = batch.climb_loss(image, loss, draws, *stream)
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


def _move(
    batch: Batch, image: Tensor, previous: Tensor, gradient: Tensor, size: Tensor, *, first: bool
) -> Tensor:
    """One projected step, then a quarter of the last displacement in place of one of its own."""
    x, ball = batch.x, batch.ball
    ahead = ball.project(x, ball.move(image, gradient, size))
    if first:
        return ahead
    return ball.project(x, image + 0.75 * (ahead - image) + 0.25 * (image - previous))


def _windows(steps: int) -> dict[int, int]:
    """After which steps the step size is reconsidered, and how many steps each time looks back on.

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
    """A random point of the surface of the ball: AutoAttack's start."""
    draws = Draws.once(make_key(batch.seed, "apgd start", number), batch.index)
    shape = tuple(batch.x.shape[1:])
    if batch.ball.norm == "linf":
        delta = 2 * draws.uniform_block(0, shape)[:, 0].to(batch.x) - 1
        delta = delta / per_sample(delta.abs().flatten(1).amax(1))
    else:
        delta = draws.normal(0, shape)[:, 0].to(batch.x)
        delta = delta / per_sample(length(delta))
    return batch.ball.project(batch.x, batch.x + batch.ball.eps * delta)


def _towards_each(batch: Batch, many: int, draws: int) -> tuple[list[Batch], str]:
    """The same points with each of the most likely wrong classes at x as target, and the loss.

    Of three classes the targeted DLR is constant while y is first and the target last: there, and
    with two, the margin itself is climbed.
    """
    z = mean_prediction(batch.victim.log_probs(batch.x, batch.index, draws, "classes"))
    classes = z.shape[1]
    if classes < 2:
        raise InputError("target_classes needs a model with at least two classes; saw one.")
    check_labels(batch.y, count=len(batch.y), classes=classes)
    wrong = z.scatter(1, batch.y[:, None], -torch.inf).topk(min(many, classes - 1)).indices
    goals = [dataclasses.replace(batch, target=target) for target in wrong.unbind(1)]
    return goals, "dlr" if classes > 3 else "log-margin"
