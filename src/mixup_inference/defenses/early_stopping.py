"""Stop drawing for an input as soon as its answer is decided.

The answer is a label, or the side of a detector's threshold; ``stopping_rules`` says when it is
decided. Inputs that are decided leave the batch and others take their place, so F always sees full
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Defense, Options, within_memory
from mixup_inference.defenses.control_variate import log_of
from mixup_inference.defenses.gap import Convention, gap
from mixup_inference.defenses.stopping_rules import Both, Question, WhichLabel, WhichSide
from mixup_inference.draws import Draws, Stream
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_choice, check_images, check_number

if TYPE_CHECKING:
    from mixup_inference.defenses.mixup import MixupInference

Stop = Literal["exact", "likely", "confident"]

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
        self.stop: Stop | None = None
        if stop is not None:
            self.stop = check_choice(stop, what="stop", known=get_args(Stop))
        self.error = check_number(error, what="error", least=1e-12, most=0.5)

    def stop_for(self, x: Tensor) -> Stop | None:
        """The rule by which to stop; none where gradients are asked for."""
        return None if x.requires_grad and torch.is_grad_enabled() else self.stop

    @timed(Stage.AVERAGING)
    @torch.no_grad()
    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0
    ) -> tuple[Tensor, Tensor]:
        """The log of the prediction, and how many draws each input had: all, or as ``stop`` says.

        When it stops early, "exact" takes the draws that are missing to be like those that were
        made, and its label is that of all draws; "likely" and "confident" have the mean of those
        that were made. No gradients.
        """
        return self._predict(check_images(x), index, stream, self.stop)

    def _predict(
        self, x: Tensor, index: Tensor | None, stream: Stream, stop: Stop | None
    ) -> tuple[Tensor, Tensor]:
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
    """The gap to ``before``, log F(x), from the draws that decide if it exceeds the threshold.

    Returns:
        The gap of each input, on the threshold's side that all draws would give with "exact"; log
        F_MI of the draws that were made, all if ``stop`` is None; and how many they were.
    """
    y_hat = before.detach().argmax(1)
    if stop is None:
        after = mi.average(x, y_hat, numbers)
        score = gap(before.detach(), after.detach(), convention)
        return score, after, torch.full_like(y_hat, len(numbers.k))
    mi.prepare()
    level, beyond = before.exp().amax(1) - threshold, _beyond(mi)
    question: Question = WhichSide(level, y_hat, beyond)
    if convention == "official":  # where MI-PL's own label may be the answer
        question = Both(WhichSide(level, None, beyond), WhichLabel(_bound(mi)))
    mean, used = _until(mi, x, y_hat, numbers, question, stop)
    after = log_of(mean)
    decided = after if stop == "exact" else mean.clamp(min=0).log()
    return gap(before, decided, convention), after, used


@torch.no_grad()
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
        if stop == "likely":
            return question.likely(rows, seen, used, draws, mi.error)
        return question.certain(rows, seen, used, mi.error)

    unit = {"exact": 3, "likely": 4, "confident": 5}[stop]
    if mi.sampling == "stratified" and not exact:
        unit = mi.p_s.round

    def draw_on() -> tuple[Tensor, Tensor]:
        return until_decided(
            predict, decided, like=known, draws=draws, unit=unit, chunk=mi._chunk_size(x)
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
    like: Tensor,
    draws: int,
    unit: int,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Draw for each sample until its answer is decided or all draws are made.

    Args:
        predict: the predictions of some draws, (count, classes), for vectors of samples' and draws'
            numbers.
        decided: whether the answer is decided, for the samples' numbers, the predictions so far
            (samples, draws, classes), zero where not drawn yet, and how many were drawn.
        like: a tensor of the shape (samples, classes), the type and the device of the sums.
        draws: the most for each sample.
        unit: how many are made between two decisions.
        chunk: how many images ``predict`` is asked for at once.

    Returns:
        The sums of the predictions (samples, classes), and how many draws each sample had.
    """
    samples, classes = like.shape
    room = -(-draws // unit) * unit
    flight = max(1, min(chunk // unit, _KEPT // (room * classes), samples))
    sums = torch.zeros_like(like)
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
