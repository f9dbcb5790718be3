"""The gap between before and after mixup inference as a detector of adversarial inputs."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.checks import check_number
from mixup_inference.defenses.base import Options
from mixup_inference.defenses.mixup import (
    Convention,
    MixupInference,
    Ratio,
    check_convention,
    gap,
)
from mixup_inference.errors import InputError
from mixup_inference.pool import Pool


def auc(clean: Tensor, adversarial: Tensor) -> float:
    """Area under the ROC curve: how often an adversarial score exceeds a clean one, ties half.

    Computed from ranks, so no threshold grid and no transformation of the scores is involved.

    >>> auc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    if len(clean) == 0 or len(adversarial) == 0:
        raise InputError("AUC needs at least one clean and one adversarial score.")
    ranked, scores = torch.sort(clean.detach().double()).values, adversarial.detach().double()
    below = torch.searchsorted(ranked, scores, right=False)
    not_above = torch.searchsorted(ranked, scores, right=True)
    return float((below + not_above).double().mean() / (2 * len(clean)))


class MixupDetector(nn.Module):
    """Detect adversarial inputs by how much mixup inference lowers the confidence.

    The score is F_yhat(x) - F_MI,yhat(x) = -Delta F_yhat, the paper's metric (Section 3.2) with
    the sign that makes larger more suspicious; ``convention="official"`` is the published code's
    variant, the difference of the maxima. MI-PL (``labels="predicted"``) is the paper's choice
    for detection.

    >>> from torch import nn
    >>> images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> detector = MixupDetector(model, Pool(images, labels), draws=5)
    >>> threshold = detector.calibrate(images, false_positive_rate=0.1)
    >>> detector.detect(images).dtype
    torch.bool
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        labels: Literal["predicted", "other"] = "predicted",
        lam: Ratio = 0.5,
        threshold: float | None = None,
        convention: Convention = "paper",
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        self.inference = MixupInference(model, pool, labels=labels, lam=lam, **options)
        self.convention = check_convention(convention)
        self.threshold = (
            None
            if threshold is None
            else check_number(threshold, what="threshold", least=-1, most=1)
        )

    @property
    def model(self) -> nn.Module:
        """The base model F."""
        return self.inference.model

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The score of each input; larger = more suspicious."""
        before, after = self.inference.log_probs(x, index=index, stream=stream)
        return gap(before, after, self.convention)

    def score(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The score of each input; larger = more suspicious."""
        out: Tensor = self(x, index=index, stream=stream)
        return out

    def calibrate(
        self,
        x_clean: Tensor,
        *,
        false_positive_rate: float = 0.05,
        index: Tensor | None = None,
        stream: str | int = "calibrate",
    ) -> float:
        """Set the threshold so that a new clean input is flagged with at most this probability.

        The threshold is the ceil((n + 1)(1 - rate))-th smallest of the n clean scores, so the
        promise holds on average over calibration sets of any size (split conformal prediction),
        not only in the limit. Use clean points that are neither in the pool nor tested on.
        """
        rate = check_number(false_positive_rate, what="false_positive_rate", least=0, most=1)
        if rate == 0:
            raise InputError("false_positive_rate must be positive: some clean input is flagged.")
        scores = self.score(x_clean, index=index, stream=stream).detach()
        rank = math.ceil((len(scores) + 1) * (1 - rate))
        if rank > len(scores):
            raise InputError(
                f"{len(scores)} clean points are too few for a false-positive rate of {rate:g}; "
                f"give at least {math.ceil(1 / rate) - 1}."
            )
        self.threshold = float(torch.sort(scores).values[max(rank, 1) - 1])
        return self.threshold

    def detect(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """True for each input whose score exceeds the threshold."""
        if self.threshold is None:
            raise InputError("the detector has no threshold; call calibrate(x_clean) first.")
        return self.score(x, index=index, stream=stream).detach() > self.threshold

    def extra_repr(self) -> str:
        """What tells this detector from another."""
        return f"threshold={self.threshold}, convention={self.convention!r}"
