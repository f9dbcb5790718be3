"""Detection of adversarial inputs: the detector of Section 3.2, and scores in general."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.early_stopping import until_side
from mixup_inference.defenses.gap import Convention, check_convention, gap
from mixup_inference.defenses.mixup import MixupInference, MixupOptions, Ratio
from mixup_inference.errors import InputError
from mixup_inference.metrics.roc import conformal_threshold
from mixup_inference.pool import Pool
from mixup_inference.registry import Registry
from mixup_inference.validation import check_images, check_number


@dataclass(frozen=True)
class ScoreEntry:
    """A detection score; larger = more suspicious.

    Attributes:
        name: in results and legends.
        function: of log F(x), shape (inputs, classes); if there is a ``defense``, also of its
            log-probabilities. Returns one number for each input.
        title: what it measures, in a few words.
        defense: the defence, with a mixing ratio ``lam``, whose answer is compared.
    """

    name: str
    function: Callable[..., Tensor]
    title: str = ""
    defense: Literal["mi-pl", "mi-ol"] | None = None


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
    out: Tensor = torch.special.entr(log_p.double().exp()).sum(1)
    return out


class MixupDetector(nn.Module):
    """Detect adversarial inputs by how much mixup inference lowers the confidence.

    The score is F_yhat(x) - F_MI,yhat(x) = -Delta F_yhat, the paper's metric (Section 3.2) with
    the sign that makes larger more suspicious; ``convention="official"`` is the published code's
    variant, the difference of the maxima. MI-PL (``labels="predicted"``) is the paper's choice
    for detection.

    ``stop="exact"`` or ``"confident"`` stops drawing for an input as soon as it is decided whether
    its score exceeds the threshold (``detect``); scores are always made of all draws.

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
        **options: Unpack[MixupOptions],
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

        See ``conformal_threshold``. Use clean points that are neither in the pool nor tested on.
        """
        scores = self.score(x_clean, index=index, stream=stream).detach()
        self.threshold = conformal_threshold(scores, false_positive_rate)
        return self.threshold

    def detect(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """True for each input whose score exceeds the threshold."""
        return self.decide(x, index=index, stream=stream)[0]

    @torch.no_grad()
    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Whether each input is detected, and how many draws it had: all, or as ``stop`` says."""
        if self.threshold is None:
            raise InputError("the detector has no threshold; call calibrate(x_clean) first.")
        check_images(x)
        mi, before = self.inference, self.inference.base_log_probs(x)
        found, _, used = until_side(
            mi, x, before, mi.numbers(x, index, stream), mi.stop,
            threshold=self.threshold, convention=self.convention,
        )  # fmt: skip
        return found, used

    def extra_repr(self) -> str:
        """The settings beside those of mixup inference."""
        return f"threshold={self.threshold}, convention={self.convention!r}"
