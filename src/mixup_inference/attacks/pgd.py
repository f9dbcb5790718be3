"""Projected gradient descent (Eq. 18): oblivious, on the expectation over draws, seed known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixup_inference.attacks.base import AttackResult, Batch, BatchResult, Method, attack, perturb
from mixup_inference.attacks.losses import LossName
from mixup_inference.attacks.options import Count, Natural, NotNegative, parse_options, settings_of
from mixup_inference.attacks.query import QueryModel, freeze
from mixup_inference.attacks.success import check_points
from mixup_inference.attacks.threat_model import Schedule, gradient_ascent
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.call import logits_of
from mixup_inference.validation import check_int, check_labels, check_number

AttackLabels = Literal["true", "predicted"]


def iterates(
    batch: Batch,
    start: Tensor,
    sizes: list[float],
    *,
    loss: LossName = "ce",
    draws: int | None = None,
    restart: int = 0,
    fresh: bool = True,
    momentum: float = 0.0,
    losses: list[Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield every iterate of PGD on the loss over K draws; ``losses`` collects their losses.

    Without ``draws`` the model answers as it would answer anybody.
    """

    def gradient(image: Tensor, number: int) -> Tensor:
        stream = ("step", restart, number if fresh else 0)
        values, found = batch.loss_and_gradient(image, loss, draws, *stream)
        if losses is not None:
            losses.append(values)
        return found

    return gradient_ascent(batch.x, start, batch.threat_model, gradient, sizes, momentum=momentum)


def ascend(
    batch: Batch, start: Tensor, sizes: list[float], loss: LossName, draws: int, **how: Any
) -> BatchResult:
    """Run PGD to its last iterate, and estimate the loss there on draws of its own."""
    losses: list[Tensor] = []
    image = start
    for iterate in iterates(batch, start, sizes, loss=loss, draws=draws, losses=losses, **how):
        image = iterate
    last = batch.loss(image, loss, draws, "last")
    return BatchResult(image, last, torch.stack([*losses, last]))


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    step: float = 2 / 255,
    steps: int = 10,
    labels: AttackLabels = "true",
    random_start: bool = True,
    momentum: float = 0.0,
    snapshots: Iterable[int] | None = None,
    **options: Any,
) -> Any:
    """Craft adversarial examples by projected gradient descent on the cross-entropy.

    Returns the last iterate of every point, whether or not it fools the model: that is what an
    oblivious attacker would send. It is always within eps of x and within [0, 1].

    Args:
        model: a classifier, or a defence (each step then sees new draws, unless it is frozen).
        x: clean images in [0, 1].
        y: the true labels.
        step: size of one step.
        steps: how many.
        labels: "predicted" goes away from the model's own prediction on x, as the published code
            of the paper does; points that are already misclassified may then become right.
        random_start: begin at a uniformly random point of the ball.
        momentum: share of the previous direction that is kept.
        snapshots: step counts; returns ``{count: examples}`` from one trajectory.
        **options: see ``AttackOptions``, without ``repeats``. A plain network on a CPU gets
            batches of at most what its caches hold, which changes nothing but the time. The draws
            of a defence under attack are its own: freeze them for a repeatable attack.
    """
    if "repeats" in options:
        raise TypeError("pgd does not evaluate success, so it takes no repeats; see judge.")
    if labels not in ("true", "predicted"):
        raise unknown_name("labels", labels, ["true", "predicted"])
    if isinstance(snapshots, int):
        snapshots = (snapshots,)
    at = [steps] if snapshots is None else sorted(set(snapshots))
    check_int(steps, what="steps", least=0)
    check_number(momentum, what="momentum", least=0)
    if not at or at[0] < 0 or at[-1] > steps:
        raise InputError(f"snapshots must lie between 0 and steps = {steps}; saw {at}.")
    sizes = at[-1] * [check_number(step, what="step", least=0)]

    def attack_batch(batch: Batch) -> list[Tensor]:
        if labels == "predicted" and batch.target is None:
            logits = logits_of(batch.model.module, batch.x)
            check_labels(batch.y, count=len(batch.y), classes=logits.shape[1])
            batch = replace(batch, y=logits.argmax(1))
        start = batch.start() if random_start else batch.x
        path = iterates(batch, start, sizes, momentum=momentum)
        return [image for count, image in enumerate(path) if count in at]

    parsed = parse_options(options, settings_of(pgd))
    points = check_points(x, y, parsed.index)
    method = Method("PGD", attack_batch, queries=lambda _: len(sizes))
    found, _ = perturb(method, model, points, {}, parsed)
    joined = (torch.cat(images).to(x.device) for images in zip(*found, strict=True))
    examples = dict(zip(at, joined, strict=True))
    return examples[steps] if snapshots is None else examples


@attack("EOT-PGD", queries=lambda call: call.restarts * call.steps)
def eot_pgd(
    batch: Batch,
    *,
    steps: Natural = 50,
    step: NotNegative | None = None,
    draws: Count = 10,
    loss: LossName = "ce",
    fresh: bool = True,
    momentum: NotNegative = 0.0,
    restarts: Count = 1,
    schedule: Schedule = "constant",
    random_start: bool = True,
) -> BatchResult:
    """PGD through the whole defence, on the loss averaged over draws (Athalye et al., 2018).

    Returns the last iterate; of several restarts, for each point the one with the highest loss on
    draws that none of them ascended on.

    Args:
        batch: the points under attack.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        draws: K, over which loss and gradient are averaged at every step.
        loss: the objective, see ``LOSSES``: "ce" of the mean prediction, "mean-ce", "margin" of
            probabilities, "log-margin" of their logarithms, "dlr".
        fresh: new draws at every step; False keeps the same draws throughout.
        momentum: share of the previous direction that is kept.
        restarts: how many random starts.
        schedule: of the step size.
        random_start: begin at a random point of the ball; False begins the first restart at x.
        **options: see ``AttackOptions``.
    """
    sizes = batch.step_sizes(step, steps, schedule)
    best: BatchResult | None = None
    for restart in range(restarts):
        start = batch.start(restart) if random_start or restart else batch.x
        found = ascend(
            batch, start, sizes, loss, draws, restart=restart, fresh=fresh, momentum=momentum
        )
        best = found.better(best)
    assert best is not None
    return best


@wraps(eot_pgd, assigned=("__annotations__",))
def frozen(defense: nn.Module, x: Tensor, y: Tensor, **options: Any) -> AttackResult:
    """The attacker knows the seed: ``eot_pgd`` on the defence with its randomness removed.

    Success is evaluated on the draws that were attacked, so the result is the robustness that does
    not come from randomness. Takes the options of ``eot_pgd``; ``draws`` has no effect.
    """
    fixed = freeze(defense)
    if QueryModel(fixed, x).is_random:
        raise InputError(
            "this module cannot be frozen: it draws from a generator of its own. "
            "Let it draw from torch's global one."
        )
    result: AttackResult = eot_pgd(fixed, x, y, **options)
    return result
