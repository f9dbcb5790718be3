"""Randomised smoothing (Cohen et al., 2019): a vote over Gaussian noise, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.defenses.base import Options, mean_prediction
from mixup_inference.defenses.baselines import GaussianNoise
from mixup_inference.defenses.filters import straight_through
from mixup_inference.errors import InputError
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_int, check_labels, check_number

#: The label of an input whose prediction could not be certified.
ABSTAIN = -1


@dataclass(frozen=True)
class Certificate:
    """The predictions of a smoothed classifier, and how far they are proven to hold.

    Attributes:
        labels: the prediction for each input, or ``ABSTAIN``.
        radii: no change of a smaller L2 norm changes the prediction, in pixels in [0, 1]; 0 where
            it abstains. Each holds with probability 1 - alpha.
    """

    labels: Tensor
    radii: Tensor

    def accuracy(self, y: Tensor, radius: float = 0.0) -> float:
        """The certified accuracy: the share of inputs that are right, proven at this radius."""
        y = check_labels(y, count=len(self.labels))
        proven = (self.labels == y.to(self.labels)) & (self.radii >= radius)
        return float(proven.double().mean())


class RandomizedSmoothing(GaussianNoise):
    """The class that F predicts most often under noise, g(x) = argmax_c P(F(x + noise) = c).

    Returns the log of (votes + mean softmax) / (N + 1): the shares of the N votes, with one vote
    more that is divided as F divides it, so that ties are broken and all logarithms are finite.
    Votes have no gradient; that of the log of the mean softmax takes its place.

    ``certify`` proves a radius within which the prediction cannot change. F should have been
    trained on noisy images; otherwise it abstains often.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    >>> certificate = RandomizedSmoothing(model, sigma=0.25).certify(x, n=1000)
    >>> accuracies = {radius: certificate.accuracy(y, radius) for radius in (0, 0.25, 0.5)}
    """

    surrogate_gradient = True

    def __init__(
        self, model: nn.Module, *, sigma: float = 0.25, **options: Unpack[Options]
    ) -> None:
        super().__init__(model, sigma=sigma, **options)

    @timed(Stage.AVERAGING)
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the shares of the votes, shape (batch, classes)."""
        check_images(x)
        return self.average(x, None, self.numbers(x, index, stream), reduce=vote)

    def certify(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 10_000,
        alpha: float = 0.001,
        index: Tensor | None = None,
        stream: str | int = "certify",
    ) -> Certificate:
        """Predict, and prove that no smaller change than the radius changes the prediction.

        ``n0`` draws choose the class A, ``n`` others count its votes. With the lower end p of the
        one-sided Clopper-Pearson interval for P(F(x + noise) = A), which errs with probability
        ``alpha``, the radius is sigma Phi^-1(p) if p > 1/2; otherwise it abstains (Theorem 1 and
        the function Certify of Cohen et al.). The same call gives the same certificate.
        """
        index = torch.arange(len(check_images(x)), device=x.device) if index is None else index
        if not 0 < check_number(alpha, what="alpha", least=0, most=1) < 1:
            raise InputError(f"alpha must be in (0, 1), without its ends; saw {alpha!r}.")
        first, others = (
            self.numbers(x, index, f"{stream} {part}", draws=check_int(count, what=what, least=1))
            for part, count, what in (("choose", n0, "n0"), ("count", n, "n"))
        )
        with torch.no_grad():
            labels = self.average(x, None, first, reduce=count_votes).argmax(1)
            votes = self.average(x, None, others, reduce=count_votes)
        p = lower_bound(votes.gather(1, labels[:, None])[:, 0], n, alpha)
        radii = self.sigma * torch.special.ndtri(p).clamp(min=0)
        return Certificate(torch.where(p > 0.5, labels, ABSTAIN), radii)


def count_votes(log_probs: Tensor) -> Tensor:
    """How many of the draws predict each class, (..., draws, classes) to (..., classes)."""
    return functional.one_hot(log_probs.argmax(-1), log_probs.shape[-1]).sum(-2)


def vote(log_probs: Tensor) -> Tensor:
    """The log of the shares of the votes, with the gradient of ``mean_prediction``."""
    soft = mean_prediction(log_probs)
    votes = count_votes(log_probs) + soft.exp()
    shares = (votes / (log_probs.shape[-2] + 1)).clamp(min=torch.finfo(soft.dtype).tiny)
    return straight_through(shares.log(), soft)


def lower_bound(hits: Tensor, n: int, alpha: float) -> Tensor:
    """Clopper and Pearson's lower bound on a probability, after so many hits in n trials.

    The p for which P(Binomial(n, p) >= hits) = alpha, a quantile of Beta(hits, n - hits + 1).

    >>> lower_bound(torch.tensor([0, 100]), 100, 0.001)
    tensor([0.0000, 0.9333], dtype=torch.float64)
    """
    from scipy.special import betaincinv  # noqa: PLC0415 (slow to import, rarely needed)

    counted = hits.cpu().numpy()
    bound = torch.from_numpy(betaincinv(counted.clip(min=1), n - counted + 1.0, alpha))
    return torch.where(hits > 0, bound.to(hits.device), 0.0)
