"""PGD on the expectation over draws (Athalye et al., 2018), through the whole defence."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.attacks.base import Attacked, Batch, Common, Found, run, step_size, step_sizes
from mixup_inference.attacks.losses import LossName, get_loss
from mixup_inference.attacks.query import Victim, freeze
from mixup_inference.attacks.threat_model import climb, per_sample
from mixup_inference.errors import InputError
from mixup_inference.validation import check_int, check_number

Schedule = Literal["constant", "linear", "cosine"]


def eot_pgd(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 50,
    step: float | None = None,
    draws: int = 10,
    loss: LossName = "ce",
    fresh: bool = True,
    momentum: float = 0.0,
    restarts: int = 1,
    schedule: Schedule = "constant",
    random_start: bool = True,
    **options: Unpack[Common],
) -> Attacked:
    """PGD through the whole defence, on the loss averaged over draws.

    Returns the last iterate; of several restarts, for each point the one with the highest loss
    on draws that none of them climbed on.

    Args:
        defense: a defence, or any classifier; without randomness this is ``pgd``.
        x: clean images in [0, 1].
        y: the true labels.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        draws: K, over which loss and gradient are averaged at every step.
        loss: what is climbed, see ``LOSSES``: "ce" of the mean prediction, "mean-ce", "margin"
            of probabilities, "log-margin" of their logarithms, "dlr".
        fresh: new draws at every step; False climbs with the same draws throughout.
        momentum: how much of the last direction is kept.
        restarts: how many random starts.
        schedule: of the step size.
        random_start: begin at a random point of the ball; False begins the first one at x.
        **options: see ``Common``.
    """
    get_loss(loss)
    count = check_int(steps, what="steps", least=0)
    sizes = step_sizes(step_size(step, options), count, schedule)
    momentum = check_number(momentum, what="momentum", least=0)
    restarts = check_int(restarts, what="restarts", least=1)

    def attack(batch: Batch) -> Found:
        best: Found | None = None
        for restart in range(restarts):
            start = batch.start(restart) if random_start or restart else batch.x
            found = ascend(
                batch, start, sizes, loss, draws, restart, fresh=fresh, momentum=momentum
            )
            best = found if best is None else better(best, found)
        assert best is not None
        return best

    ticks = restarts * len(sizes)
    return run("EOT-PGD", defense, x, y, attack, options, draws=draws, ticks=ticks)


def frozen(defense: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Attacked:
    """The attacker knows the seed: ``eot_pgd`` on the defence with its randomness removed.

    The examples are judged on the draws that were attacked. What is left is the robustness that
    does not come from randomness. Takes the options of ``eot_pgd``; ``draws`` has no effect.
    """
    fixed = freeze(defense)
    if Victim(fixed, x).is_random:
        raise InputError(
            "this module cannot be frozen: it draws from a generator of its own. "
            "Let it draw from torch's global one."
        )
    return eot_pgd(fixed, x, y, **options)


def ascend(
    batch: Batch,
    start: Tensor,
    sizes: list[float],
    loss: LossName,
    draws: int,
    restart: int = 0,
    *,
    fresh: bool = True,
    momentum: float = 0.0,
) -> Found:
    """One trajectory of a batch to its last iterate, with the loss there on draws of its own."""
    losses: list[Tensor] = []

    def gradient(image: Tensor, number: int) -> Tensor:
        stream = ("step", restart, number if fresh else 0)
        found, values = batch.climb_loss(image, loss, draws, *stream)
        losses.append(values)
        return found

    image = start
    for iterate in climb(batch.x, start, batch.ball, gradient, sizes, momentum=momentum):
        image = iterate
    last = batch.loss(image, loss, draws, "last")
    return Found(image, last, torch.stack([*losses, last]))


def better(a: Found, b: Found) -> Found:
    """For each point the one with the higher loss."""
    second = b.loss > a.loss
    return Found(
        torch.where(per_sample(second), b.examples, a.examples),
        torch.where(second, b.loss, a.loss),
        torch.where(second, b.trace, a.trace),
    )
