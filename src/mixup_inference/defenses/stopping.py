"""Draws where they matter: stop drawing for an image as soon as its label is decided.

Two rules. *Exact*: the draws that are left cannot change the label, so it is that of all N.
*Confident*: the label is that of infinitely many draws, but for a stated probability of error.
Images that are decided leave the batch and others take their place, so F always sees full ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Stop = Literal["exact", "confident"]

#: How far sums of probabilities may be off by rounding, in another order of summation.
SLACK = 1e-4
#: Stakes of the sequential test, as shares of the largest that cannot go bankrupt.
STAKES = (0.03, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95)
#: How many numbers of drawn predictions are kept at a time.
_KEPT = 1 << 25


def until_decided(
    look: Callable[[Tensor, Tensor], Tensor],
    decided: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    samples: int,
    classes: int,
    draws: int,
    unit: int,
    chunk: int,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw for each sample until its label is decided or all draws are made.

    Args:
        look: the predictions of draws, (count, classes), for vectors of samples and draw numbers.
        decided: whether the label is decided, for the samples' numbers, the predictions so far
            (samples, draws, classes), zero where not drawn yet, and how many were drawn.
        samples: how many.
        classes: how many.
        draws: the most for each sample.
        unit: how many are made between two decisions.
        chunk: how many images ``look`` is asked for at once.
        like: a tensor of the same type and on the same device as the predictions.

    Returns:
        The sums of the predictions (samples, classes), and how many draws each sample had.
    """
    room = -(-draws // unit) * unit
    flight = max(1, min(chunk // unit, _KEPT // (room * classes), samples))
    sums = like.new_zeros(samples, classes)
    used = torch.zeros(samples, dtype=torch.int64, device=like.device)
    order, step = (torch.arange(count, device=like.device) for count in (samples, unit))
    rows, waiting = order[:flight], order[flight:]
    seen = like.new_zeros(flight, room, classes)
    while len(rows):
        k = used[rows, None] + step
        line, column = torch.nonzero(k < draws, as_tuple=True)
        seen[line, k[line, column]] = look(rows[line], k[line, column]).to(seen)
        used[rows] = (used[rows] + unit).clamp(max=draws)
        stop = (used[rows] == draws) | decided(rows, seen[:, : int(used[rows].max())], used[rows])
        sums[rows[stop]] = seen[stop].sum(1)
        fresh, waiting = waiting.tensor_split([int(stop.sum())])
        rows = torch.cat([rows[~stop], fresh])
        seen = torch.cat([seen[~stop], seen.new_zeros(len(fresh), room, classes)])
    return sums, used


def cannot_change(seen: Tensor, used: Tensor, draws: int, known: Tensor) -> Tensor:
    """Whether no outcome of the remaining draws can make another class the largest.

    Each can move the difference of two classes by one at most. ``known`` is what will be
    subtracted from the sum of all draws (the control variate's terms), (samples, classes).
    """
    first, second = (seen.sum(1) - known).topk(2, dim=1).values.unbind(1)
    return first - second > draws - used + SLACK


def is_certain(seen: Tensor, *, bound: float, error: float) -> Tensor:
    """Whether the leading class is the largest in expectation, with this probability of error.

    For the leader against each rival a bet on the next difference D of their probabilities: the
    capital, times 1 + stake D / bound at each draw, cannot grow on average if the rival is the
    better. That it ever reaches (L - 1) / error has a probability of at most error / (L - 1)
    (Ville's inequality; Waudby-Smith and Ramdas, 2024), and if the leader is wrong, one of L - 1
    classes has beaten the best one. So it may be looked at as often as one likes. The capital is
    spread evenly over several stakes.

    Stratified draws may be looked at after whole rounds: within one, the draws of different labels
    are independent, with means g_c that sum to at most zero if the rival is the better, and the
    capital grows by prod(1 + stake g_c / bound) <= exp(stake sum(g_c) / bound) <= 1 on average.

    Args:
        seen: unbiased predictions, (samples, draws, classes), zero where not drawn.
        bound: no difference of two classes is below minus this.
        error: the probability.
    """
    leader = seen.sum(1).argmax(1)
    lead = seen.gather(2, leader[:, None, None].expand(-1, seen.shape[1], 1)) - seen
    logs = torch.stack([torch.log1p(stake / bound * lead).sum(1) for stake in STAKES])
    capital = torch.logsumexp(logs, 0) - math.log(len(STAKES))
    capital = capital.scatter(1, leader[:, None], torch.inf)
    return capital.amin(1) >= math.log((seen.shape[2] - 1) / error)
