"""Mixup inference (Algorithm 1), its label rules, and the gap that detects (Section 3.2)."""

from __future__ import annotations

from functools import partial
from typing import Literal, Self, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Options, RandomizedInference, Stream, within_memory
from mixup_inference.defenses.control_variate import PoolPredictions, log_of
from mixup_inference.defenses.early_stopping import (
    Both,
    Question,
    Stop,
    WhichLabel,
    WhichSide,
    until_decided,
)
from mixup_inference.defenses.label_distribution import Labels, label_rule, other_labels
from mixup_inference.draws import Beta, Draws, Uniform, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.pool import Pool
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_number

Sampling = Literal["independent", "stratified"]
Ratio = float | Uniform | Beta
Convention = Literal["paper", "official"]

_LABEL, _IMAGE, _RATIO = range(3)  # slots of one draw


class MixupInference(RandomizedInference):
    """F_MI(x) = 1/N sum_k F(lam x + (1 - lam) x_s,k), Eq. 6 and Algorithm 1.

    One pass of F gives y_hat, the prediction on x itself; then y_s ~ p_s(y), x_s ~ p_s(x | y_s)
    are drawn N times. ``y_hat`` is treated as a constant when differentiating.

    Args:
        model: any classifier from NCHW images in [0, 1] to logits (batch, classes).
        pool: the clean samples.
        labels: p_s(y). "other" is MI-OL (uniform over the labels other than y_hat), "predicted"
            is MI-PL (y_hat itself); or a vector of class probabilities; or a function
            ``(y_hat, u) -> y_s`` on tensors of shape (samples, draws) with u uniform on [0, 1).
        lam: the mixing ratio, the share of x: a number, or ``Uniform(a, b)`` or ``Beta(a, b)``
            for a new ratio in every draw (Appendix B.1).
        sampling: "independent" draws, as in the paper; or "stratified" ones, which agree with
            the answer of infinitely many draws more often. Each draw has the same distribution,
            but labels (and random ratios) come in rounds: with MI-OL every allowed label once,
            in random order. Fewer draws are a prefix of more in both.
        control_variate: correct each draw by what the linearity of F says about its x_s:
            F(x~_k) - (1 - lam_k) (F(x_s,k) - mu), where mu is the expectation of F(x_s). The
            expectation stays the same, the variance falls, and F passes over the pool once.
        stop: stop drawing for an input when its label is decided: "exact", when the draws that
            are left cannot change it; "confident", when it is that of infinitely many draws, but
            for the probability ``error``. ``draws`` is then the most that are made. For labels
            only: with gradients, in ``log_probs`` and for attacks all draws are made.
        error: the probability that "confident" stops at another label.
        **options: draws, seed, fresh, chunk; see ``Options``.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        labels: Labels = "other",
        lam: Ratio = 0.5,
        sampling: Sampling = "independent",
        control_variate: bool = False,
        stop: Stop | None = None,
        error: float = 0.05,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        if stop not in (None, "exact", "confident"):
            raise unknown_name("stop", stop, ["exact", "confident"])
        self.stop = stop
        self.error = check_number(error, what="error", least=1e-12, most=0.5)
        if not isinstance(pool, Pool):
            raise InputError(f"pool must be a Pool; saw {type(pool).__name__}. Use Pool(x, y).")
        self.pool = pool
        self.lam = check_ratio(lam)
        self.labels = labels
        self.sampling = check_sampling(sampling)
        self._rule = label_rule(labels, pool.classes)
        #: How many draws are a round of stratified ones.
        self.round = other_labels(self._rule) or pool.classes
        self.control_variate = bool(control_variate)
        self.predictions = PoolPredictions(pool, self._rule) if control_variate else None

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one."""
        twin = super().with_model(model)
        if self.predictions is not None:
            self.prepare()
            twin.predictions = self.predictions.for_model(model)
        return twin

    @property
    def passes_once(self) -> int:
        """How many images pass through F to prepare the defence: the pool, if it is corrected."""
        return 0 if self.predictions is None else len(self.pool)

    def prepare(self) -> int:
        """Pass F over the pool, if the control variate needs it; how many images passed.

        Otherwise done at the first call; done anew when the model has changed.
        """
        if self.predictions is None:
            return 0
        predictions, images = self.predictions, self.pool.images
        return within_memory(
            self,
            images,
            lambda: predictions.update(self.model, self._classify, self._chunk_size(images)),
        )

    def average(
        self,
        x: Tensor,
        look: Tensor | None,
        stream: Stream,
        index: Tensor,
        draws: int | None = None,
    ) -> Tensor:
        """Log F_MI over the draws; with the control variate, corrected.

        The correction can make a probability slightly negative. So the logarithm is that of the
        clamped and normalised prediction, whose largest component is the same.
        """
        out = super().average(x, look, stream, index, draws)
        if self.predictions is None:
            return out
        assert look is not None
        self.prepare()
        count = self.draws if draws is None else draws
        all_k = torch.arange(count, device=x.device)
        lam, numbers = self.partners(look, Draws(make_key(self.seed, *stream), index, all_k))
        return log_of(out.exp() - self.predictions.by_chance(look, 1 - lam, numbers).to(out))

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the averaged prediction, shape (batch, classes)."""
        if self.stop is None or (x.requires_grad and torch.is_grad_enabled()):
            return super().forward(x, index=index, stream=stream)
        return self.decide(x, index=index, stream=stream)[0]

    @timed(Stage.AVERAGING)
    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """The log of the prediction, and how many draws each input had: all, or as ``stop`` says.

        When it stops early, "exact" takes the draws that are missing to be like those that were
        made, and its label is that of all draws; "confident" has the mean of those that were made.
        No gradients.
        """
        check_images(x)
        name, index = self.samples_of(x, index, stream)
        return self.decide_given(x, self._look(x), name, index)

    @torch.no_grad()
    def decide_given(
        self, x: Tensor, y_hat: Tensor, stream: Stream, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where the prediction on x itself is known."""
        if self.stop is None:
            return self.average(x, y_hat, stream, index), torch.full_like(y_hat, self.draws)
        self.prepare()
        question = WhichLabel(self._bound())
        mean, used = self._until(x, y_hat, make_key(self.seed, *stream), index, question)
        return log_of(mean), used

    @timed(Stage.AVERAGING)
    @torch.no_grad()
    def gap_exceeds(
        self,
        x: Tensor,
        before: Tensor,
        stream: Stream,
        index: Tensor,
        threshold: float,
        convention: Convention,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Whether the gap to ``before``, log F(x), exceeds the threshold.

        Returns:
            It for each input; log F_MI of the draws that were made; and how many they were: all,
            or as ``stop`` says.
        """
        y_hat = before.argmax(1)
        if self.stop is None:
            after = self.average(x, y_hat, stream, index)
            used = torch.full_like(y_hat, self.draws)
            return gap(before, after, convention) > threshold, after, used
        self.prepare()
        level = before.exp().amax(1) - threshold
        question: Question = WhichSide(level, y_hat, self._beyond())
        if convention == "official":  # where MI-PL's own label may be the answer
            question = Both(WhichSide(level, None, self._beyond()), WhichLabel(self._bound()))
        mean, used = self._until(x, y_hat, make_key(self.seed, *stream), index, question)
        after = log_of(mean)
        decided = after if self.stop == "exact" else mean.clamp(min=0).log()
        return gap(before, decided, convention) > threshold, after, used

    def _until(
        self, x: Tensor, y_hat: Tensor, key: int, index: Tensor, question: Question
    ) -> tuple[Tensor, Tensor]:
        """F_MI of the draws that the question takes, and how many they were.

        With "exact" the draws that are missing are taken to be like those that were made.
        """
        exact, chance = self.stop == "exact", self.predictions
        known = x.new_zeros(len(x), self.pool.classes)
        if exact and chance is not None:
            all_k = torch.arange(self.draws, device=x.device)
            lam, numbers = self.partners(y_hat, Draws(key, index, all_k))
            known = self.draws * chance.by_chance(y_hat, 1 - lam, numbers)

        def look(rows: Tensor, k: Tensor) -> Tensor:
            lam, numbers = self.partners(y_hat[rows], Draws(key, index[rows], k[:, None]))
            p = self._classify(self._mix(x[rows], lam[:, 0], numbers[:, 0])).exp()
            if exact or chance is None:
                return p
            return p - chance.by_chance(y_hat[rows], 1 - lam, numbers)

        def decided(rows: Tensor, seen: Tensor, used: Tensor) -> Tensor:
            if exact:
                return question.settled(rows, seen.sum(1) - known[rows], used, self.draws)
            return question.certain(rows, seen, used, self.error)

        def draw_on() -> tuple[Tensor, Tensor]:
            return until_decided(
                look,
                decided,
                samples=len(x),
                classes=self.pool.classes,
                draws=self.draws,
                unit=3 if exact else self.round if self.sampling == "stratified" else 5,
                chunk=self._chunk_size(x),
                like=x,
            )

        sums, used = within_memory(self, x, draw_on)
        mean = sums / used[:, None]
        if exact:
            mean = mean - known / self.draws
        return mean.to(x.dtype), used

    def _beyond(self) -> float:
        """How far below 0 or above 1 the control variate can take a draw: 1 - lam at most."""
        if self.predictions is None:
            return 0.0
        least = self.lam if isinstance(self.lam, float) else self.lam.quantile(torch.zeros(1))
        return 1 - float(least)

    def _bound(self) -> float:
        """No draw lowers the difference of two classes' predictions below minus this."""
        if self.predictions is None:
            return 1.0
        low, high = torch.aminmax(self.predictions.mean, dim=1)
        return 1 + self._beyond() * (1 + float((high - low).max()))

    @timed(Stage.AVERAGING)
    def log_probs(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Log F(x) and log F_MI(x), with the one pass on x used for both."""
        check_images(x)
        before = self.base_log_probs(x)
        name, index = self.samples_of(x, index, stream)
        return before, self.average(x, before.detach().argmax(1), name, index)

    def base_log_probs(self, x: Tensor) -> Tensor:
        """Log softmax F(x) on the input itself; pool and input are checked to fit together."""
        if x.shape[1:] != self.pool.images.shape[1:]:
            raise InputError(
                f"x has images of shape {tuple(x.shape[1:])}, the pool of shape "
                f"{tuple(self.pool.images.shape[1:])}; they must be the same to be mixed."
            )
        if x.device != self.pool.images.device:
            raise InputError(
                f"x is on {x.device}, the pool on {self.pool.images.device}; move the defence "
                f"with .to('{x.device}')."
            )
        out = super().base_log_probs(x)
        if out.shape[1] != self.pool.classes:
            raise InputError(
                f"the model predicts {out.shape[1]} classes, the pool holds {self.pool.classes}."
            )
        return out

    def _look(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.base_log_probs(x).argmax(1)

    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:
        assert look is not None
        return self._mix(x[:, None], *self.partners(look, draws))

    @timed(Stage.MIXING)
    def _mix(self, x: Tensor, lam: Tensor, numbers: Tensor) -> Tensor:
        """x~_k of Algorithm 1."""
        lam = lam.to(x.dtype)[..., None, None, None]
        x_s = self.pool.pixels(numbers, x.dtype)  # a copy, so that it can be mixed in place
        return x_s.mul_(1 - lam).addcmul_(lam, x)

    @timed(Stage.DRAWING)
    def partners(self, y_hat: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """The ratio lam and the number of the pool's image, for each sample and draw."""
        uniform = draws.uniform
        if self.sampling == "stratified":
            uniform = partial(draws.stratified, cells=self.round)
        choose = uniform(_LABEL)
        y_s = self._rule(y_hat[:, None].expand_as(choose), choose)
        numbers = self.pool.draw(y_s, draws.bits(_IMAGE))
        if isinstance(self.lam, float):
            return torch.full_like(numbers, self.lam, dtype=torch.float64), numbers
        return self.lam.quantile(uniform(_RATIO)), numbers

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        rule = self.labels if isinstance(self.labels, str) else type(self.labels).__name__
        return (
            f"labels={rule!r}, lam={self.lam}, sampling={self.sampling!r}, "
            f"control_variate={self.control_variate}, stop={self.stop!r}, draws={self.draws}, "
            f"seed={self.seed}"
        )


def check_sampling(sampling: object) -> Sampling:
    """How draws relate to each other."""
    if sampling not in ("independent", "stratified"):
        raise unknown_name("sampling", sampling, ["independent", "stratified"])
    return sampling


def check_ratio(lam: object) -> Ratio:
    """A mixing ratio: a number in [0, 1] or a distribution on it."""
    if isinstance(lam, Uniform | Beta):
        return lam
    return check_number(lam, what="lam", least=0, most=1)


def gap(before: Tensor, after: Tensor, convention: Convention = "paper") -> Tensor:
    """How much the confidence fell under mixup inference; larger = more suspicious.

    "paper": F_yhat(x) - F_MI,yhat(x) = -Delta F_yhat (Eq. 9, with the sign of Eq. 14).
    "official": max F(x) - max F_MI(x), as the published code has it.
    Both arguments are log-probabilities.
    """
    check_convention(convention)
    p, p_mi = before.exp(), after.exp()
    if convention == "official":
        return p.amax(1) - p_mi.amax(1)
    y_hat = before.detach().argmax(1, keepdim=True)
    return (p.gather(1, y_hat) - p_mi.gather(1, y_hat)).squeeze(1)


def check_convention(convention: Convention) -> Convention:
    """One of the two readings of the detection score."""
    if convention not in ("paper", "official"):
        raise unknown_name("convention", convention, ["paper", "official"])
    return convention
