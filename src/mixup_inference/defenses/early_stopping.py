"""Draws where they matter: stop drawing for an image as soon as its answer is decided.

The answer is a label, or the side of a detector's threshold. Two rules. *Exact*: the draws that
are left cannot change it, so it is that of all N. *Confident*: it is that of infinitely many
draws, but for a stated probability of error.
Images that are decided leave the batch and others take their place, so F always sees full ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Defense, Options, within_memory
from mixup_inference.defenses.control_variate import log_of
from mixup_inference.defenses.gap import Convention, gap
from mixup_inference.draws import Draws
from mixup_inference.errors import unknown_name
from mixup_inference.validation import check_number

if TYPE_CHECKING:
    from mixup_inference.defenses.mixup import MixupInference

Stop = Literal["exact", "confident"]

#: How far sums of probabilities may be off by rounding, in another order of summation.
SLACK = 1e-4

#: Stakes of the sequential test, as shares of the largest that cannot go bankrupt.
STAKES = (0.03, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95)

#: How many numbers of drawn predictions are kept at a time.
_KEPT = 1 << 25


class EarlyStopping(Defense):
    """A defence that need not make all draws where only the label is asked for."""

    def __init__(
        self,
        model: nn.Module,
        *,
        stop: Stop | None = None,
        error: float = 0.05,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        if stop not in (None, "exact", "confident"):
            raise unknown_name("stop", stop, ["exact", "confident"])
        self.stop: Stop | None = stop
        self.error = check_number(error, what="error", least=1e-12, most=0.5)

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the prediction, shape (batch, classes)."""
        if self.stops_early(x):
            return self.decide(x, index=index, stream=stream)[0]
        return super().forward(x, index=index, stream=stream)

    def stops_early(self, x: Tensor) -> bool:
        """Whether a call may stop early: not where gradients are asked for."""
        return self.stop is not None and not (x.requires_grad and torch.is_grad_enabled())

    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """The log of the prediction, and how many draws each input had."""
        raise NotImplementedError


def until_label(
    mi: MixupInference, x: Tensor, y_hat: Tensor, numbers: Draws, stop: Stop | None
) -> tuple[Tensor, Tensor]:
    """Log F_MI of the draws that decide the label, all if ``stop`` is None; how many they were."""
    if stop is None:
        return mi.average(x, y_hat, numbers), torch.full_like(y_hat, len(numbers.k))
    mi.prepare()
    mean, used = _until(mi, x, y_hat, numbers, WhichLabel(_bound(mi)), stop)
    return log_of(mean), used


def until_side(
    mi: MixupInference,
    x: Tensor,
    before: Tensor,
    numbers: Draws,
    stop: Stop | None,
    *,
    threshold: float,
    convention: Convention,
) -> tuple[Tensor, Tensor, Tensor]:
    """Whether the gap to ``before``, log F(x), exceeds the threshold.

    Returns:
        That for each input; log F_MI of the draws that decide it, all if ``stop`` is None; and how
        many they were.
    """
    y_hat = before.detach().argmax(1)
    if stop is None:
        after = mi.average(x, y_hat, numbers)
        found = gap(before.detach(), after.detach(), convention) > threshold
        return found, after, torch.full_like(y_hat, len(numbers.k))
    mi.prepare()
    level, beyond = before.exp().amax(1) - threshold, _beyond(mi)
    question: Question = WhichSide(level, y_hat, beyond)
    if convention == "official":  # where MI-PL's own label may be the answer
        question = Both(WhichSide(level, None, beyond), WhichLabel(_bound(mi)))
    mean, used = _until(mi, x, y_hat, numbers, question, stop)
    after = log_of(mean)
    decided = after if stop == "exact" else mean.clamp(min=0).log()
    return gap(before, decided, convention) > threshold, after, used


def _until(
    mi: MixupInference, x: Tensor, y_hat: Tensor, numbers: Draws, question: Question, stop: Stop
) -> tuple[Tensor, Tensor]:
    """F_MI of the draws that the question takes, and how many they were.

    With "exact" the draws that are missing are taken to be like those that were made.
    """
    exact, control, draws = stop == "exact", mi.predictions, len(numbers.k)
    known = x.new_zeros(len(x), mi.pool.classes)
    if exact and control is not None:
        known = draws * control.by_chance(y_hat, *mi.partners(y_hat, numbers))

    def predict(rows: Tensor, k: Tensor) -> Tensor:
        some = numbers.at(rows, k[:, None])
        p = mi._block(x[rows], y_hat[rows], some)[:, 0].exp()
        if exact or control is None:
            return p
        return p - control.by_chance(y_hat[rows], *mi.partners(y_hat[rows], some))

    def decided(rows: Tensor, seen: Tensor, used: Tensor) -> Tensor:
        if exact:
            return question.settled(rows, seen.sum(1) - known[rows], used, draws)
        return question.certain(rows, seen, used, mi.error)

    def draw_on() -> tuple[Tensor, Tensor]:
        return until_decided(
            predict,
            decided,
            samples=len(x),
            classes=mi.pool.classes,
            draws=draws,
            unit=3 if exact else mi.p_s.round if mi.sampling == "stratified" else 5,
            chunk=mi._chunk_size(x),
            like=x,
        )

    sums, used = within_memory(mi, x, draw_on)
    mean = sums / used[:, None]
    if exact:
        mean = mean - known / draws
    return mean.to(x.dtype), used


def _beyond(mi: MixupInference) -> float:
    """How far below 0 or above 1 the control variate can take a draw: 1 - lam at most."""
    if mi.predictions is None:
        return 0.0
    return 1 - float(mi.lam if isinstance(mi.lam, float) else mi.lam.quantile(torch.zeros(1)))


def _bound(mi: MixupInference) -> float:
    """No draw lowers the difference of two classes' predictions below minus this."""
    return 1.0 if mi.predictions is None else 1 + _beyond(mi) * (1 + mi.predictions.spread())


def until_decided(
    predict: Callable[[Tensor, Tensor], Tensor],
    decided: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    samples: int,
    classes: int,
    draws: int,
    unit: int,
    chunk: int,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw for each sample until its answer is decided or all draws are made.

    Args:
        predict: the predictions of some draws, (count, classes), for vectors of samples' and draws'
            numbers.
        decided: whether the answer is decided, for the samples' numbers, the predictions so far
            (samples, draws, classes), zero where not drawn yet, and how many were drawn.
        samples: how many.
        classes: how many.
        draws: the most for each sample.
        unit: how many are made between two decisions.
        chunk: how many images ``predict`` is asked for at once.
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
        seen[line, k[line, column]] = predict(rows[line], k[line, column]).to(seen)
        used[rows] = (used[rows] + unit).clamp(max=draws)
        stop = (used[rows] == draws) | decided(rows, seen[:, : int(used[rows].max())], used[rows])
        sums[rows[stop]] = seen[stop].sum(1)
        fresh, waiting = waiting.tensor_split([int(stop.sum())])
        rows = torch.cat([rows[~stop], fresh])
        seen = torch.cat([seen[~stop], seen.new_zeros(len(fresh), room, classes)])
    return sums, used


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
