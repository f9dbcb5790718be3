"""MI-Combined: detect with MI-PL, answer the detected with MI-OL (Section 4.3)."""

from __future__ import annotations

from functools import partial
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Options, StochasticModule
from mixup_inference.defenses.early_stopping import Stop
from mixup_inference.defenses.mixup import (
    Convention,
    MixupInference,
    Ratio,
    Sampling,
    check_convention,
    gap,
)
from mixup_inference.pool import Pool
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_number


class CombinedInference(StochasticModule):
    """MI-OL for inputs that MI-PL detects as adversarial; the others keep a plain prediction.

    An input is detected when its gap exceeds ``threshold``. Convention "paper": the gap is that
    of the y_hat component, and an undetected input gets F's prediction on the input itself.
    Convention "official", what the published code does: the gap is that of the maxima, and an
    undetected input gets the MI-PL average. MI-OL is computed for detected inputs only.

    Args:
        model: any classifier from NCHW images in [0, 1] to logits (batch, classes).
        pool: the clean samples.
        lam_detect: the mixing ratio of MI-PL.
        lam_defend: the mixing ratio of MI-OL.
        threshold: on the gap, a difference of probabilities.
        convention: "paper" or "official".
        sampling: of both, see ``MixupInference``.
        control_variate: of both.
        stop: of both: MI-PL stops drawing for an input when it is decided whether it is detected,
            MI-OL when its label is. For labels only, see ``MixupInference``.
        error: the probability that "confident" is wrong, of each of the two.
        **options: draws, seed, fresh, chunk; see ``Options``.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        lam_detect: Ratio = 0.5,
        lam_defend: Ratio = 0.4,
        threshold: float = 0.2,
        convention: Convention = "paper",
        sampling: Sampling = "independent",
        control_variate: bool = False,
        stop: Stop | None = None,
        error: float = 0.05,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        self.convention = check_convention(convention)
        self.threshold = check_number(threshold, what="threshold", least=-1, most=1)
        self.pool = pool
        both = partial(
            MixupInference,
            model,
            pool,
            sampling=sampling,
            control_variate=control_variate,
            stop=stop,
            error=error,
        )
        # In a tuple, so that torch sees the model and the pool once, not three times.
        self._parts = (
            both(labels="predicted", lam=lam_detect, **options),
            both(labels="other", lam=lam_defend, **options),
        )

    @property
    def detector(self) -> MixupInference:
        """MI-PL."""
        return self._parts[0]

    @property
    def defender(self) -> MixupInference:
        """MI-OL."""
        return self._parts[1]

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one."""
        twin = self._around(model)
        twin._parts = (self._parts[0].with_model(model), self._parts[1].with_model(model))
        return twin

    @property
    def passes_once(self) -> int:
        """How many images pass through F to prepare both parts."""
        return sum(part.passes_once for part in self._parts)

    def prepare(self) -> int:
        """Pass F over the pool for the control variates; how many images passed."""
        return sum(part.prepare() for part in self._parts)

    def reseed(self, seed: int) -> None:
        """Start over with the draws of another seed."""
        super().reseed(seed)
        for part in getattr(self, "_parts", ()):  # not there yet while constructing
            part.reseed(seed)

    def halve_chunk(self, x: Tensor) -> bool:
        """From now on half as many images at once in both parts; whether that was possible."""
        one, two = (part.halve_chunk(x) for part in self._parts)
        return one or two

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the prediction, shape (batch, classes)."""
        if self.detector.stop is not None and not (x.requires_grad and torch.is_grad_enabled()):
            return self.decide(x, index=index, stream=stream)[0]
        return self.draw(x, self.draws, index=index, stream=stream)[:, 0]

    @timed(Stage.AVERAGING)
    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """One answer made of so many draws, shape (batch, 1, classes)."""
        check_images(x)
        name, index = self.samples_of(x, index, stream)
        before = self.detector.base_log_probs(x)
        y_hat = before.detach().argmax(1)
        after = self.detector.average(x, y_hat, ("detect", *name), index, draws)
        answer = before if self.convention == "paper" else after
        score = gap(before.detach(), after.detach(), self.convention)
        rows = torch.nonzero(score > self.threshold).flatten()
        if len(rows):
            some = x[rows], y_hat[rows], ("defend", *name), index[rows]
            answer = answer.index_copy(0, rows, self.defender.average(*some, draws))
        return answer[:, None]

    @timed(Stage.AVERAGING)
    @torch.no_grad()
    def decide(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> tuple[Tensor, Tensor]:
        """The log of the prediction, and how many draws each input had: all, or as ``stop`` says.

        No gradients.
        """
        check_images(x)
        name, index = self.samples_of(x, index, stream)
        before = self.detector.base_log_probs(x)
        found, after, used = self.detector.gap_exceeds(
            x, before, ("detect", *name), index, self.threshold, self.convention
        )
        answer = before if self.convention == "paper" else after
        rows = torch.nonzero(found).flatten()
        if len(rows):
            y_hat = before[rows].argmax(1)
            some, more = self.defender.decide_given(x[rows], y_hat, ("defend", *name), index[rows])
            answer, used = answer.index_copy(0, rows, some), used.index_add(0, rows, more)
        return answer, used

    def extra_repr(self) -> str:
        """What tells this defence from another."""
        return (
            f"lam_detect={self.detector.lam}, lam_defend={self.defender.lam}, "
            f"threshold={self.threshold}, convention={self.convention!r}, draws={self.draws}"
        )
