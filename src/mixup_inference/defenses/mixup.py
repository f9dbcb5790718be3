"""Mixup inference (Algorithm 1), its label rules, and the gap that detects (Section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.checks import check_images, check_number
from mixup_inference.defenses.base import Options, RandomizedInference
from mixup_inference.draws import Beta, Draws, Uniform
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.pool import Pool

LabelRule = Callable[[Tensor, Tensor], Tensor]
Labels = Literal["other", "predicted"] | Tensor | Sequence[float] | LabelRule
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
        **options: draws, seed, fresh, chunk; see ``Options``.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        labels: Labels = "other",
        lam: Ratio = 0.5,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        if not isinstance(pool, Pool):
            raise InputError(f"pool must be a Pool; saw {type(pool).__name__}. Use Pool(x, y).")
        self.pool = pool
        self.lam = check_ratio(lam)
        self.labels = labels
        self._rule = label_rule(labels, pool.classes)

    def log_probs(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Log F(x) and log F_MI(x), with the one pass on x used for both."""
        check_images(x)
        before = self.base_log_probs(x)
        name, index = self._samples(x, index, stream)
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
        lam, numbers = self.partners(look, draws)
        lam = lam.to(x.dtype)[..., None, None, None]
        x_s = self.pool.pixels(numbers, x.dtype)
        return lam * x[:, None] + (1 - lam) * x_s  # x~_k of Algorithm 1

    def partners(self, y_hat: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """The ratio lam and the number of the pool's image, for each sample and draw."""
        y_s = self._rule(y_hat[:, None].expand(-1, len(draws.k)), draws.uniform(_LABEL))
        numbers = self.pool.draw(y_s, draws.bits(_IMAGE))
        if isinstance(self.lam, float):
            return torch.full_like(numbers, self.lam, dtype=torch.float64), numbers
        return self.lam.quantile(draws.uniform(_RATIO)), numbers

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        rule = self.labels if isinstance(self.labels, str) else type(self.labels).__name__
        return f"labels={rule!r}, lam={self.lam}, draws={self.draws}, seed={self.seed}"


def check_ratio(lam: object) -> Ratio:
    """A mixing ratio: a number in [0, 1] or a distribution on it."""
    if isinstance(lam, Uniform | Beta):
        return lam
    return check_number(lam, what="lam", least=0, most=1)


def label_rule(labels: Labels, classes: int) -> LabelRule:
    """p_s(y) as a function of y_hat and uniform numbers; a function that can be pickled."""
    if isinstance(labels, str):
        return _named_rule(labels, classes)
    if callable(labels) and not isinstance(labels, Tensor):
        return _Checked(labels, classes)
    try:
        weights = torch.as_tensor(labels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "labels must be 'other', 'predicted', class probabilities or a function "
            f"(y_hat, u) -> labels; saw {labels!r}."
        ) from None
    if (
        weights.shape != (classes,)
        or not bool((weights >= 0).all())
        or abs(weights.sum() - 1) > 1e-6
    ):
        raise InputError(
            f"labels as probabilities must be {classes} non-negative numbers that sum to 1; "
            f"saw {weights.tolist()}."
        )
    last = int(torch.nonzero(weights)[-1])  # rounding must not let u reach a class of weight 0
    return _Weighted(torch.cumsum(weights, 0)[:last])


def _named_rule(name: str, classes: int) -> LabelRule:
    if name == "predicted":
        return _predicted
    if name != "other":
        raise unknown_name("label rule", name, ["other", "predicted"])
    if classes < 2:
        raise InputError(f"labels='other' needs at least two classes; the pool has {classes}.")
    return _Other(classes)


def _predicted(y_hat: Tensor, _: Tensor) -> Tensor:
    """MI-PL: p_s(y) = 1 for y = y_hat."""
    return y_hat


@dataclass(frozen=True)
class _Other:
    """MI-OL: uniform on the L - 1 labels other than y_hat."""

    classes: int

    def __call__(self, y_hat: Tensor, u: Tensor) -> Tensor:
        y_s = (u * (self.classes - 1)).long()  # 0..L-2; skip over y_hat
        return y_s + (y_s >= y_hat).long()


@dataclass(frozen=True)
class _Weighted:
    """Given class probabilities, whatever y_hat is."""

    cumulative: Tensor

    def __call__(self, _: Tensor, u: Tensor) -> Tensor:
        return torch.bucketize(u, self.cumulative.to(u.device), right=True)


@dataclass(frozen=True)
class _Checked:
    """A caller's own rule, with its answers checked."""

    rule: LabelRule
    classes: int

    def __call__(self, y_hat: Tensor, u: Tensor) -> Tensor:
        y_s = self.rule(y_hat, u)
        if not isinstance(y_s, Tensor) or y_s.shape != u.shape or y_s.is_floating_point():
            seen = f"{y_s.dtype} of shape {tuple(y_s.shape)}" if isinstance(y_s, Tensor) else y_s
            raise InputError(
                f"the labels function must return integers of shape {tuple(u.shape)}; saw {seen}."
            )
        if bool((y_s < 0).any()) or bool((y_s >= self.classes).any()):
            raise InputError(
                f"the labels function returned a label outside 0..{self.classes - 1}: it lies in "
                f"[{int(y_s.min())}, {int(y_s.max())}]."
            )
        return y_s.long()


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
