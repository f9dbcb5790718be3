"""SCORES: one entry for each detection score, with what it is computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mixup_inference.defenses import filters
from mixup_inference.defenses.gap import gap
from mixup_inference.errors import InputError
from mixup_inference.registry import Registry


@dataclass(frozen=True)
class ScoreEntry:
    """A detection score; larger = more suspicious.

    Attributes:
        name: in results and legends.
        function: of log F(x), shape (inputs, classes), and of a second tensor if there is a
            ``defense`` or if there are ``views``. Returns one number for each input, with gradients
            if an attack is to see through it.
        title: what it measures, in a few words.
        defense: the defence, with a mixing ratio ``lam``, whose answer is compared: its
            log-probabilities are the second argument.
        draws: the second argument has them draw by draw, (inputs, draws, classes).
        views: other versions of the images, shape (inputs, versions, C, H, W); log F of them is the
            second argument, (inputs, versions, classes).
        logits: the first argument has F's logits, whose scale log F(x) has lost.
    """

    name: str
    function: Callable[..., Tensor]
    title: str = ""
    defense: Literal["mi-pl", "mi-ol"] | None = None
    draws: bool = False
    views: Callable[[Tensor], Tensor] | None = None
    logits: bool = False

    def __post_init__(self) -> None:
        if self.draws and not self.defense:
            raise InputError(f"the score {self.name!r} has draws and no defense to make them.")
        if sum((bool(self.defense), self.views is not None, self.logits)) > 1:
            raise InputError(f"the score {self.name!r} may have one of defense, views and logits.")

    @property
    def functions(self) -> tuple[Callable[..., Tensor], ...]:
        """All functions that it consists of."""
        return (self.function,) if self.views is None else (self.function, self.views)

    @property
    def of_answers(self) -> bool:
        """Whether log F(x), and the mean prediction of the defence, are all that it takes."""
        return not (self.draws or self.views or self.logits)


SCORES = Registry("detection score", ScoreEntry)

SCORES.add(ScoreEntry("MI-PL", gap, "fall of the confidence under MI-PL", "mi-pl"))
SCORES.add(ScoreEntry("MI-OL", gap, "fall of the confidence under MI-OL", "mi-ol"))


@SCORES.register("low confidence", title="1 - max F(x)")
def low_confidence(log_p: Tensor) -> Tensor:
    """1 - max F(x)."""
    return 1 - log_p.double().exp().amax(1)


@SCORES.register("entropy", title="entropy of F(x)")
def entropy(log_p: Tensor) -> Tensor:
    """-sum F(x) log F(x)."""
    return _entropy(log_p.double().exp())


def _entropy(p: Tensor) -> Tensor:
    """-sum p log p, with a gradient that is finite where p is zero."""
    out: Tensor = torch.special.entr(p.clamp(min=torch.finfo(p.dtype).tiny)).sum(1)
    return out


@SCORES.register("energy", title="energy of the logits", logits=True)
def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T log sum_y exp(f_y(x) / T), the energy of Liu et al. (2020), made to detect other data.

    For a model that returns log-probabilities, such as a defence, it is the same for all inputs.
    """
    return -temperature * torch.logsumexp(logits.double() / temperature, dim=1)


def squeezed(x: Tensor) -> Tensor:
    """Each image squeezed in several ways, shape (images, ways, C, H, W).

    The best joint detectors of Xu et al., as their EvadeML-Zoo has them: with one channel 1 bit
    and a 2x2 median (their MNIST); in colour 5 bits, a 2x2 median, and non-local means 13-3-2
    (their CIFAR-10), which they take from OpenCV, in CIELAB; here it is computed in RGB.
    """
    median = filters.median_filter(x, 2)
    if x.shape[1] == 1:
        return torch.stack([filters.quantize(x, 1), median], dim=1)
    ways = [filters.quantize(x, 2**5 - 1), median, filters.non_local_means(x)]
    return torch.stack(ways, dim=1)


@SCORES.register(
    "feature squeezing", title="largest change of F(x) by squeezing the image", views=squeezed
)
def feature_squeezing(log_p: Tensor, log_p_views: Tensor) -> Tensor:
    """The largest of |F(x) - F(squeezed x)|_1 over all squeezers (Xu, Evans and Qi, 2018)."""
    change = log_p.double().exp()[:, None] - log_p_views.double().exp()
    return change.abs().sum(2).amax(1)


@SCORES.register(
    "label histogram", title="entropy of the labels under MI-OL", defense="mi-ol", draws=True
)
def label_histogram(log_p: Tensor, log_p_draws: Tensor) -> Tensor:  # noqa: ARG001
    """Entropy of the histogram of the labels that F gives to N mixed inputs.

    Lee et al. (2022) call it TTMA-DU and tell right from wrong predictions by it; we know of no
    publication that detects adversarial inputs with it. For attacks, the gradient is that of the
    entropy of the mean prediction.
    """
    p = log_p_draws.double().exp()
    votes = functional.one_hot(p.argmax(2), p.shape[2]).double().mean(1)
    return filters.straight_through(torch.special.entr(votes).sum(1), _entropy(p.mean(1)))


@SCORES.register(
    "dissent", title="share of MI-OL's draws against the label", defense="mi-ol", draws=True
)
def dissent(log_p: Tensor, log_p_draws: Tensor) -> Tensor:
    """The share of N mixed inputs to which F gives another label than to x itself.

    The gap of MI-OL, counted in votes instead of probabilities; our own. For attacks, the gradient
    is that of 1 - F_MI,yhat(x).
    """
    p, y_hat = log_p_draws.double().exp(), log_p.detach().argmax(1)
    against = (p.argmax(2) != y_hat[:, None]).double().mean(1)
    return filters.straight_through(against, 1 - p.mean(1).gather(1, y_hat[:, None])[:, 0])
