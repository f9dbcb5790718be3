"""Detectors: a detection score with a calibrated threshold; that of Section 3.2 among them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses import Defense, images_at_once, make_defense, mean_prediction
from mixup_inference.defenses.early_stopping import until_side
from mixup_inference.defenses.gap import Convention, check_convention, gap
from mixup_inference.defenses.mixup import MixupInference, MixupOptions, Ratio
from mixup_inference.detection.scores import SCORES, ScoreEntry
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.metrics.roc import conformal_threshold
from mixup_inference.models.call import check_model, logits_of, refuse_probabilities
from mixup_inference.pool import Pool
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_number


class Detector(nn.Module):
    """Detect adversarial inputs by any score of ``SCORES``: flag those above a threshold.

    Args:
        score: its name, or an entry of your own.
        model: any classifier from NCHW images in [0, 1] to logits (batch, classes).
        pool: the clean samples, for scores that mix.
        threshold: above which an input is flagged; see ``calibrate``.
        lam: the mixing ratio, for scores that mix.
        **options: of ``MixupInference``, for scores that mix.

    >>> from torch import nn
    >>> images, model = torch.rand(20, 1, 4, 4), nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> detector = Detector("energy", model)
    >>> threshold = detector.calibrate(images, false_positive_rate=0.1)
    >>> int(detector.detect(images).sum()) <= 2
    True
    """

    inference: nn.Module  # the defence behind the score, or the model itself

    def __init__(
        self,
        score: str | ScoreEntry,
        model: nn.Module,
        pool: Pool | None = None,
        *,
        threshold: float | None = None,
        lam: Ratio = 0.5,
        **options: Unpack[MixupOptions],
    ) -> None:
        super().__init__()
        for name in set(options) - MixupOptions.__optional_keys__:
            raise TypeError(str(unknown_name("option", name, MixupOptions.__optional_keys__)))
        if not isinstance(score, str | ScoreEntry):
            raise InputError(
                f"score must be a name or a ScoreEntry; saw {type(score).__name__}. "
                "It comes before the model."
            )
        self.entry = SCORES[score] if isinstance(score, str) else score
        if self.entry.defense is None:
            self.inference = check_model(model)
        else:
            self.inference = make_defense(self.entry.defense, model, pool, lam=lam, **options)
        if threshold is not None:
            check_number(threshold, what="threshold")
        self.threshold = threshold

    @property
    def model(self) -> nn.Module:
        """The base model F."""
        inference = self.inference
        return inference.model if self.is_random and isinstance(inference, Defense) else inference

    @property
    def is_random(self) -> bool:
        """Whether the same input can get different scores."""
        return self.entry.defense is not None

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The score of each input; larger = more suspicious."""
        return self.examine(x, index=index, stream=stream)[1]

    def score(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The score of each input; larger = more suspicious."""
        out: Tensor = self(x, index=index, stream=stream)
        return out

    @timed(Stage.AVERAGING)
    def examine(
        self,
        x: Tensor,
        *,
        index: Tensor | None = None,
        stream: str | int = 0,
        draws: int | None = None,
        through: nn.Module | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log F(x) and the score, with the one pass on x used for both.

        Args:
            x: images in [0, 1].
            index: the inputs' positions in their data set, to which their draws belong.
            stream: of the draws.
            draws: how many, if not those of the options.
            through: a copy of ``inference`` to use in its stead, such as a faster one.
        """
        check_images(x)
        entry, inference = self.entry, self.inference if through is None else through
        if self.is_random:
            assert isinstance(inference, MixupInference)
            before = inference.base_log_probs(x)
            numbers = inference.numbers(x, index, stream, draws=draws)
            y_hat, reduce = before.detach().argmax(1), None if entry.draws else mean_prediction
            after = inference.average(x, y_hat, numbers, reduce=reduce)
            return before, entry.function(before, after)
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            parts = [_examine_alone(entry, inference, part) for part in x.split(images_at_once(x))]
            before, found = (torch.cat(some) for some in zip(*parts, strict=True))
        return before, found

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

    def calibrated(self) -> float:
        """The threshold; refuse a detector that has none."""
        if self.threshold is None:
            raise InputError("the detector has no threshold; call calibrate(x_clean) first.")
        return self.threshold

    @torch.no_grad()
    def detect(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """True for each input whose score exceeds the threshold."""
        threshold = self.calibrated()
        return self.score(x, index=index, stream=stream) > threshold

    def extra_repr(self) -> str:
        """The settings beside those of mixup inference."""
        return f"score={self.entry.name!r}, threshold={self.threshold}"


def _examine_alone(entry: ScoreEntry, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Log F(x) and a score that needs no defence."""
    logits = logits_of(model, x)
    refuse_probabilities(logits)
    log_p = torch.log_softmax(logits, dim=1)
    if entry.logits:
        return log_p, entry.function(logits)
    if entry.views is None:
        return log_p, entry.function(log_p)
    views = entry.views(x)
    log_p_views = torch.log_softmax(logits_of(model, views.flatten(0, 1)), dim=1)
    return log_p, entry.function(log_p, log_p_views.view(*views.shape[:2], -1))


class MixupDetector(Detector):
    """Detect adversarial inputs by how much mixup inference lowers the confidence.

    The score is F_yhat(x) - F_MI,yhat(x) = -Delta F_yhat, the paper's metric (Section 3.2) with
    the sign that makes larger more suspicious; ``convention="official"`` is the published code's
    variant, the difference of the maxima. MI-PL (``labels="predicted"``) is the paper's choice
    for detection.

    With ``stop`` ("exact", "likely", "confident") no more is drawn for an input once it is decided
    whether its score exceeds the threshold (``detect``); scores are always made of all draws.

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
        nn.Module.__init__(self)
        self.inference: MixupInference = MixupInference(
            model, pool, labels=labels, lam=lam, **options
        )
        self.convention = check_convention(convention)
        self.entry = replace(SCORES["MI-PL"], function=partial(gap, convention=convention))
        self.threshold = (
            None
            if threshold is None
            else check_number(threshold, what="threshold", least=-1, most=1)
        )

    def detect(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """True for each input whose score exceeds the threshold."""
        return self.decide(x, index=index, stream=stream)[0]

    @torch.no_grad()
    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Whether each input is detected, and how many draws it had: all, or as ``stop`` says."""
        threshold = self.calibrated()
        check_images(x)
        mi, before = self.inference, self.inference.base_log_probs(x)
        score, _, used = until_side(
            mi, x, before, mi.numbers(x, index, stream), mi.stop,
            threshold=threshold, convention=self.convention,
        )  # fmt: skip
        return score > threshold, used

    def extra_repr(self) -> str:
        """The settings beside those of mixup inference."""
        return f"threshold={self.threshold}, convention={self.convention!r}"
