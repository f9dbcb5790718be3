"""Mixup inference (Algorithm 1)."""

from __future__ import annotations

from functools import partial
from typing import Literal, Self, Unpack, get_args

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Options, within_memory
from mixup_inference.defenses.control_variate import ControlVariate, log_of
from mixup_inference.defenses.early_stopping import EarlyStopping, Stop, until_label
from mixup_inference.defenses.label_distribution import Labels, label_distribution
from mixup_inference.draws import Beta, Draws, Stream, Uniform
from mixup_inference.errors import InputError
from mixup_inference.pool import Pool, mix
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_choice, check_images, check_number

Sampling = Literal["independent", "stratified"]
Ratio = float | Uniform | Beta

_LABEL, _IMAGE, _RATIO = range(3)  # slots of one draw


class MixupOptions(Options, total=False):
    """The options of ``MixupInference`` that what is built on it takes too."""

    sampling: Sampling
    control_variate: bool
    stop: Stop | None
    error: float


class MixupInference(EarlyStopping):
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
            are left cannot change it; "likely", when they do with about the probability ``error``
            at most; "confident", when it is that of infinitely many draws, but for the probability
            ``error``. ``draws`` is then the most that are made. For labels only: with gradients, in
            ``log_probs`` and for attacks all draws are made.
        error: the probability that "likely" and "confident" stop at another label.
        **options: draws, seed, fresh, chunk, engine; see ``Options``.
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
        super().__init__(model, stop=stop, error=error, **options)
        if not isinstance(pool, Pool):
            raise InputError(f"pool must be a Pool; saw {type(pool).__name__}. Use Pool(x, y).")
        self.pool = pool
        self.labels, self.p_s = labels, label_distribution(labels, pool.classes)
        if not isinstance(lam, Uniform | Beta):
            lam = check_number(lam, what="lam", least=0, most=1)
        self.lam: Ratio = lam
        self.sampling: Sampling = check_choice(sampling, what="sampling", known=get_args(Sampling))
        self.control_variate = bool(control_variate)
        self.predictions = ControlVariate(self.p_s) if control_variate else None

    @timed(Stage.AVERAGING)
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0) -> Tensor:
        """Log F_MI(x), shape (batch, classes); the mean of fewer draws where ``stop`` allows it."""
        if self.stop_for(check_images(x)) is not None:
            return self.decide(x, index=index, stream=stream)[0]
        return self.average(x, self.condition(x), self.numbers(x, index, stream))

    def condition(self, x: Tensor) -> Tensor:
        """y_hat, the prediction on the input itself."""
        with torch.no_grad():
            return self.base_log_probs(x).argmax(1)

    def transform(self, x: Tensor, y_hat: Tensor, numbers: Draws, /) -> Tensor:
        """x~_k for each sample and draw."""
        lam, chosen = self.partners(y_hat, numbers)
        x_s = self.pool.pixels(chosen, x.dtype)  # a copy, so that it can be mixed in place
        return mix(x[:, None], x_s, lam.to(x.dtype)[..., None, None, None], in_place=True)

    @timed(Stage.DRAWING)
    def partners(self, y_hat: Tensor, numbers: Draws) -> tuple[Tensor, Tensor]:
        """The ratio lam and the number of the pool's image x_s, for each sample and draw."""
        uniform = numbers.uniform
        if self.sampling == "stratified":
            uniform = partial(numbers.stratified, cells=self.p_s.round)
        u = uniform(_LABEL)
        y_s = self.p_s.sample(y_hat[:, None].expand_as(u), u)  # y_s ~ p_s(y)
        place = numbers.integers(_IMAGE, self.pool.count(y_s))
        chosen = self.pool.nth(y_s, place)  # x_s ~ p_s(x | y_s)
        if isinstance(self.lam, float):
            return torch.full_like(chosen, self.lam, dtype=torch.float64), chosen
        return self.lam.quantile(uniform(_RATIO)), chosen

    def correct(self, log_mean: Tensor, y_hat: Tensor, numbers: Draws) -> Tensor:
        """Log F_MI; with the control variate, corrected."""
        if self.predictions is None:
            return log_mean
        self.prepare()
        chance = self.predictions.by_chance(y_hat, *self.partners(y_hat, numbers))
        return log_of(log_mean.exp() - chance.to(log_mean))

    @timed(Stage.AVERAGING)
    def log_probs(
        self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0
    ) -> tuple[Tensor, Tensor]:
        """Log F(x) and log F_MI(x), with the one pass on x used for both."""
        check_images(x)
        before = self.base_log_probs(x)
        y_hat = before.detach().argmax(1)
        return before, self.average(x, y_hat, self.numbers(x, index, stream))

    def _predict(
        self, x: Tensor, index: Tensor | None, stream: Stream, stop: Stop | None
    ) -> tuple[Tensor, Tensor]:
        return until_label(self, x, self.condition(x), self.numbers(x, index, stream), stop)

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

    # Set-up of the control variate

    @property
    def passes_once(self) -> int:
        """The number of forward passes that set-up takes: the pool, with the control variate."""
        return 0 if self.predictions is None else len(self.pool)

    def prepare(self) -> int:
        """Pass F over the pool, if the control variate needs it; return the number of passes.

        Otherwise done at the first call; done anew when the model has changed.
        """
        if self.predictions is None:
            return 0
        update = partial(self.predictions.update, self, self.pool)
        return within_memory(self, self.pool.images, update)

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one."""
        twin = super().with_model(model)
        if self.predictions is not None:
            self.prepare()
            twin.predictions = self.predictions.for_model(model)
        return twin
