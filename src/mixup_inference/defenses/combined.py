"""MI-Combined: detect with MI-PL, answer the detected with MI-OL (Section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Options
from mixup_inference.defenses.early_stopping import EarlyStopping, Stop, until_label, until_side
from mixup_inference.defenses.gap import Convention, check_convention
from mixup_inference.defenses.mixup import MixupInference, MixupOptions, Ratio
from mixup_inference.draws import Draws, Stream, make_key
from mixup_inference.pool import Pool
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_number


@dataclass(frozen=True)
class Examined:
    """What MI-Combined finds out about each input.

    Attributes:
        before: log F(x).
        score: the gap, of the draws that were made.
        detected: whether it exceeds the threshold.
        answer: the log of the prediction.
        draws: how many were made, of MI-PL and MI-OL together.
    """

    before: Tensor
    score: Tensor
    detected: Tensor
    answer: Tensor
    draws: Tensor


class CombinedInference(EarlyStopping):
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
        **options: of both, see ``MixupInference`` and ``Options``. With ``stop``, MI-PL stops
            drawing for an input when it is decided whether it is detected, MI-OL when its label
            is; ``error`` is the probability that "likely" or "confident" is wrong, for each of the
            two.
    """

    detector: MixupInference  # MI-PL
    defender: MixupInference  # MI-OL

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        lam_detect: Ratio = 0.5,
        lam_defend: Ratio = 0.4,
        threshold: float = 0.2,
        convention: Convention = "paper",
        **options: Unpack[MixupOptions],
    ) -> None:
        detector = MixupInference(model, pool, labels="predicted", lam=lam_detect, **options)
        defender = MixupInference(model, pool, labels="other", lam=lam_defend, **options)
        shared = ("stop", "error", *Options.__optional_keys__)
        super().__init__(model, **{name: getattr(detector, name) for name in shared})
        self.convention = check_convention(convention)
        self.threshold = check_number(threshold, what="threshold", least=-1, most=1)
        self.lam_detect, self.lam_defend = detector.lam, defender.lam
        self.pool = pool
        # Not as submodules, so that torch sees the model and the pool once, not three times.
        self.__dict__.update(detector=detector, defender=defender)

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one."""
        twin = self._around(model)
        detector, defender = self.detector.with_model(model), self.defender.with_model(model)
        twin.__dict__.update(detector=detector, defender=defender)
        return twin

    @property
    def passes_once(self) -> int:
        """The number of forward passes that the set-up of both parts takes."""
        return self.detector.passes_once + self.defender.passes_once

    def prepare(self) -> int:
        """Pass F over the pool for the control variates; return the number of passes."""
        return self.detector.prepare() + self.defender.prepare()

    def reseed(self, seed: int) -> None:
        """Start over with the draws of another seed."""
        super().reseed(seed)
        if "detector" in self.__dict__:  # not there yet while constructing
            self.detector.reseed(seed)
            self.defender.reseed(seed)

    def halve_chunk(self, x: Tensor) -> bool:
        """Halve the chunk size of both parts from now on; return whether that was possible."""
        return self.detector.halve_chunk(x) | self.defender.halve_chunk(x)

    @timed(Stage.AVERAGING)
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0) -> Tensor:
        """The log of the prediction, shape (batch, classes)."""
        return self._predict(check_images(x), index, stream, self.stop_for(x))[0]

    @timed(Stage.AVERAGING)
    @torch.no_grad()
    def examine(self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0) -> Examined:
        """Both parts, step by step; they stop drawing as ``stop`` says. No gradients."""
        return self._examine(check_images(x), index, stream, self.stop)

    @timed(Stage.AVERAGING)
    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: Stream = 0
    ) -> Tensor:
        """One answer made of so many draws, shape (batch, 1, classes)."""
        return self._predict(check_images(x), index, stream, None, draws)[0][:, None]

    def part_numbers(
        self, x: Tensor, index: Tensor | None = None, stream: Stream = 0, draws: int | None = None
    ) -> tuple[Draws, Draws]:
        """The random numbers of MI-PL and of MI-OL in a call with these arguments."""
        name, index, k = self._stream(x, index, stream, draws)
        detect, defend = (make_key(self.seed, part, *name) for part in ("detect", "defend"))
        return Draws(detect, index, k), Draws(defend, index, k)

    def _predict(
        self,
        x: Tensor,
        index: Tensor | None,
        stream: Stream,
        stop: Stop | None,
        draws: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        found = self._examine(x, index, stream, stop, draws)
        return found.answer, found.draws

    def _examine(
        self,
        x: Tensor,
        index: Tensor | None,
        stream: Stream,
        stop: Stop | None,
        draws: int | None = None,
    ) -> Examined:
        detect, defend = self.part_numbers(x, index, stream, draws)
        before = self.detector.base_log_probs(x)
        score, after, used = until_side(
            self.detector, x, before, detect, stop,
            threshold=self.threshold, convention=self.convention,
        )  # fmt: skip
        detected = score > self.threshold
        answer = before if self.convention == "paper" else after
        rows = torch.nonzero(detected).flatten()
        if len(rows):
            y_hat = before[rows].detach().argmax(1)
            some, more = until_label(self.defender, x[rows], y_hat, defend.at(rows), stop)
            answer, used = answer.index_copy(0, rows, some), used.index_add(0, rows, more)
        return Examined(before, score, detected, answer, used)
