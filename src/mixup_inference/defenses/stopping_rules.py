"""When the draws of an input decide an answer: its label, or the side of a detector's threshold.

Three rules. *Exact*: the draws that are left cannot change the answer, so it is that of all N.
*Likely*: they are unlikely to change it. *Confident*: the answer is that of infinitely many draws,
but for a stated probability of error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

#: How far sums of probabilities may be off by rounding, in another order of summation.
SLACK = 1e-4

#: Stakes of the sequential test, as shares of the largest that cannot go bankrupt.
STAKES = (0.03, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95)

#: What "likely" assumes of the spread of an input's draws before it has seen one: this standard
#: deviation, as if from so many draws. Without it, a few equal draws would settle everything.
PRIOR_DEVIATION, PRIOR_DRAWS = 0.05, 3


class Question(Protocol):
    """What the draws of an input are to decide."""

    def settled(self, rows: Tensor, sums: Tensor, used: Tensor, draws: int) -> Tensor:
        """Whether no outcome of the remaining draws can change the answer.

        Args:
            rows: the samples' numbers.
            sums: of the predictions so far, less what will be subtracted from the sum of all
                draws (the control variate's terms); (samples, classes).
            used: how many draws were made, for each sample.
            draws: how many there are in all.
        """

    def certain(self, rows: Tensor, seen: Tensor, used: Tensor, error: float) -> Tensor:
        """Whether the answer is that of infinitely many draws, with this probability of error.

        Args:
            rows: the samples' numbers.
            seen: unbiased predictions, (samples, draws, classes), zero where not drawn.
            used: how many draws were made, for each sample.
            error: the probability.
        """

    def likely(self, rows: Tensor, seen: Tensor, used: Tensor, draws: int, error: float) -> Tensor:
        """Whether the remaining draws change the answer with no more than this probability.

        That holds for normally distributed draws, anew at each look. Arguments as above.
        """


@dataclass(frozen=True)
class WhichLabel:
    """Which class has the largest mean. No difference of two classes is below minus ``bound``."""

    bound: float

    def settled(self, _: Tensor, sums: Tensor, used: Tensor, draws: int) -> Tensor:
        """Each draw that is left can move the difference of two classes by one at most."""
        first, second = sums.topk(2, dim=1).values.unbind(1)
        return first - second > draws - used + SLACK

    def certain(self, _: Tensor, seen: Tensor, __: Tensor, error: float) -> Tensor:
        """Bet on the leading class against each rival.

        If the leader is wrong, one of L - 1 classes has beaten the best one.
        """
        leader = seen.sum(1).argmax(1)
        lead = seen.gather(2, leader[:, None, None].expand(-1, seen.shape[1], 1)) - seen
        capital = _log_capital(lead / self.bound).scatter(1, leader[:, None], torch.inf)
        return capital.amin(1) >= math.log((seen.shape[2] - 1) / error)

    def likely(self, _: Tensor, seen: Tensor, used: Tensor, draws: int, error: float) -> Tensor:
        """The leading class stays ahead of each rival."""
        leader = seen.sum(1).argmax(1)[:, None]
        lead = seen.gather(2, leader[..., None].expand(-1, seen.shape[1], 1)) - seen
        distance = _t_of_mean(lead, used, draws).scatter(1, leader, torch.inf)
        return distance.amin(1) > _t_quantiles(draws, error).to(seen)[used]


@dataclass(frozen=True)
class WhichSide:
    """On which side of a level the mean of one class lies, or the largest mean of all.

    Args:
        level: for each sample.
        column: the class, for each sample; None for the largest mean.
        beyond: how far below 0 or above 1 a single draw can be, with the control variate.
    """

    level: Tensor
    column: Tensor | None
    beyond: float

    def settled(self, rows: Tensor, sums: Tensor, used: Tensor, draws: int) -> Tensor:
        """Each draw that is left adds between 0 and 1 to each class.

        Then negative means are set to zero and all are divided by their sum, which is 1 plus what
        was negative.
        """
        low = self._of(rows, sums[:, None]).amax((1, 2))
        high = low + draws - used
        low = low.clamp(min=0) / (1 + (-sums / draws).clamp(min=0).sum(1))
        level = draws * self.level[rows]
        return (low > level + SLACK) | (high < level - SLACK)

    def certain(self, rows: Tensor, seen: Tensor, used: Tensor, error: float) -> Tensor:
        """Bet that a class is above the level, and that it is below.

        The largest is wrongly called higher if one of the classes is, and wrongly called lower
        only if the largest is.
        """
        values, level = self._of(rows, seen), self.level[rows, None, None].to(seen)
        drawn = torch.arange(seen.shape[1], device=seen.device) < used[:, None]
        above = (values - level) * drawn[..., None]
        highest, lowest = (
            _log_capital(sign * above / room.clamp(min=0.01))
            for sign, room in ((1, level + self.beyond), (-1, 1 - level + self.beyond))
        )
        count = values.shape[2]
        is_above = highest.amax(1) >= math.log(count / error)
        return is_above | (lowest.amin(1) >= math.log(1 / error))

    def likely(self, rows: Tensor, seen: Tensor, used: Tensor, draws: int, error: float) -> Tensor:
        """A class stays above the level, or all of them stay below."""
        above = self._of(rows, seen) - self.level[rows, None, None].to(seen)
        distance = _t_of_mean(above, used, draws)
        least = _t_quantiles(draws, error).to(seen)[used, None]
        return (distance > least).any(1) | (distance < -least).all(1)

    def _of(self, rows: Tensor, values: Tensor) -> Tensor:
        """The classes that are asked about, (samples, draws, 1 or all)."""
        if self.column is None:
            return values
        return values.gather(2, self.column[rows, None, None].expand(-1, values.shape[1], 1))


@dataclass(frozen=True)
class Both:
    """Two questions."""

    one: Question
    two: Question

    def settled(self, rows: Tensor, sums: Tensor, used: Tensor, draws: int) -> Tensor:
        """Whether both are."""
        one, two = (q.settled(rows, sums, used, draws) for q in (self.one, self.two))
        return one & two

    def certain(self, rows: Tensor, seen: Tensor, used: Tensor, error: float) -> Tensor:
        """Whether both are, each with half of the error."""
        one, two = (q.certain(rows, seen, used, error / 2) for q in (self.one, self.two))
        return one & two

    def likely(self, rows: Tensor, seen: Tensor, used: Tensor, draws: int, error: float) -> Tensor:
        """Whether both are, each with half of the error."""
        one, two = (q.likely(rows, seen, used, draws, error / 2) for q in (self.one, self.two))
        return one & two


@cache
def _t_quantiles(draws: int, error: float) -> Tensor:
    """Student's t for 0, 1, ... draws that is exceeded with this probability."""
    from scipy.stats import t  # noqa: PLC0415 (slow to import)

    found = [float(t.ppf(1 - error, made - 1)) for made in range(2, draws + 1)]
    return torch.tensor([math.inf, math.inf, *found])


def _t_of_mean(values: Tensor, used: Tensor, draws: int) -> Tensor:
    """How many standard deviations the mean of all draws is from zero, (samples, columns).

    After k of N independent draws with the variance s^2, the mean of all N is expected to be that
    of the k, with the variance s^2 (1/k - 1/N).

    Args:
        values: (samples, draws, columns); those from ``used`` on do not count.
        used: k, for each sample.
        draws: N.
    """
    k = used[:, None].to(values)
    drawn = (torch.arange(values.shape[1], device=values.device) < used[:, None])[..., None]
    mean = (values * drawn).sum(1) / k
    squares = ((values - mean[:, None]) * drawn).square().sum(1)
    cautious = (squares + PRIOR_DRAWS * PRIOR_DEVIATION**2) / (PRIOR_DRAWS + k - 1)
    variance = torch.maximum(squares / (k - 1).clamp(min=1), cautious)
    return mean / (variance * (1 / k - 1 / draws)).sqrt()


def _log_capital(gains: Tensor) -> Tensor:
    """The log of what bets on positive gains have come to, (samples, draws, bets) to (.., bets).

    The capital, times 1 + stake x gain at each draw, cannot grow on average if the expected gain
    is not positive, and gains are never below -1. So the probability that it ever reaches 1 / e is
    at most e (Ville's inequality; Waudby-Smith and Ramdas, 2024), and it may be looked at as often
    as one likes. It is spread evenly over several stakes.

    Stratified draws may be looked at after whole rounds: within one, the draws of different labels
    are independent, with means g_c that sum to at most zero if the bet is wrong, and the capital
    grows by prod(1 + stake g_c) <= exp(stake sum(g_c)) <= 1 on average.
    """
    logs = torch.stack([torch.log1p(stake * gains).sum(1) for stake in STAKES])
    return torch.logsumexp(logs, 0) - math.log(len(STAKES))
