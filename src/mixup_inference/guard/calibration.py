"""Calibration on clean images, and how certain it is: false alarms per class, drift.

A clean image is flagged if its score exceeds the threshold, which is one of the n calibration
scores: the one that m of them exceed. Then the rate at which new clean images exceed it has a known
distribution, Beta(m + 1, n - m), whatever the distribution of the scores (ties make it smaller),
and the number of alarms among new images a beta-binomial one. So both statements are exact; they
need new images to come from where the calibration images came from.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mixup_inference.errors import InputError
from mixup_inference.experiments.spec.fields import Count, NotNegative, Table
from mixup_inference.metrics.roc import conformal_threshold

#: The probability of the intervals.
LEVEL = 0.95

#: A check reports drift where as many or as few alarms have a smaller probability than this.
RARE = 0.01


class ClassAlarms(Table):
    """False alarms among the calibration images of one class, with the exact 95% interval."""

    name: str
    points: NotNegative
    flagged: NotNegative
    low: float
    high: float


class Calibration(Table):
    """How the threshold was set, and which false-alarm rate it promises.

    Attributes:
        threshold: an image with a higher score is flagged.
        false_positive_rate: the rate asked for, an upper bound of the mean over calibrations.
        points: n, the number of clean images.
        flagged: m, how many of them score above the threshold.
        low: the lower end of the exact 95% interval of the rate on new images.
        high: its upper end.
        data: the name of the data set, if it is known.
        date: of the calibration.
        images: a hash of the clean images.
        classes: false alarms class by class, if labels were given.
    """

    threshold: float
    false_positive_rate: float
    points: Count
    flagged: NotNegative
    low: float
    high: float
    data: str = ""
    date: str = ""
    images: str = ""
    classes: tuple[ClassAlarms, ...] = ()


def calibrate(
    scores: Tensor,
    false_positive_rate: float,
    *,
    labels: Tensor | None = None,
    names: tuple[str, ...] = (),
    **about: str,
) -> Calibration:
    """The threshold for a false-alarm rate; InputError if there are too few clean scores for it.

    >>> import torch
    >>> found = calibrate(torch.arange(199.0), 0.05)
    >>> found.flagged, round(found.low, 3), round(found.high, 3)
    (9, 0.024, 0.084)
    """
    threshold = conformal_threshold(scores, false_positive_rate)
    flagged = scores > threshold
    low, high = rate_interval(len(scores), int(flagged.sum()))
    return Calibration(
        threshold=threshold,
        false_positive_rate=false_positive_rate,
        points=len(scores),
        flagged=int(flagged.sum()),
        low=low,
        high=high,
        classes=() if labels is None else alarms_by_class(flagged, labels, names),
        **about,
    )


def rate_interval(points: int, flagged: int) -> tuple[float, float]:
    """The exact interval of the rate at which new clean images exceed the threshold."""
    from scipy.stats import beta  # noqa: PLC0415 (slow to import)

    tail = (1 - LEVEL) / 2
    ends = beta.ppf([tail, 1 - tail], flagged + 1, max(points - flagged, 1))
    return float(ends[0]), float(ends[1])


def alarms_by_class(
    flagged: Tensor, labels: Tensor, names: tuple[str, ...]
) -> tuple[ClassAlarms, ...]:
    """The false alarms of each class, with intervals by Clopper and Pearson."""
    from scipy.stats import binomtest  # noqa: PLC0415 (slow to import)

    if len(labels) != len(flagged):
        raise InputError(f"there are {len(labels)} labels for {len(flagged)} clean images.")
    out = []
    for label, name in enumerate(names):
        own = flagged[labels == label]
        low, high = 0.0, 1.0
        if len(own):
            found = binomtest(int(own.sum()), len(own)).proportion_ci(LEVEL)
            low, high = float(found.low), float(found.high)
        out.append(
            ClassAlarms(name=name, points=len(own), flagged=int(own.sum()), low=low, high=high)
        )
    return tuple(out)


@dataclass(frozen=True)
class Drift:
    """Whether the false alarms on new clean images fit the calibration.

    Attributes:
        points: number of new images.
        flagged: how many of them were flagged.
        expected: how many flags the calibration predicts.
        probability: two-sided p-value of the count of flags.
    """

    points: int
    flagged: int
    expected: float
    probability: float

    @property
    def fits(self) -> bool:
        """Whether the count is unsurprising; if it is not, calibrate again."""
        return self.probability >= RARE


def drift(calibration: Calibration, flagged: Tensor) -> Drift:
    """Compare the alarms on new clean images with what the calibration promises.

    >>> import torch
    >>> found = calibrate(torch.arange(199.0), 0.05)
    >>> drift(found, torch.arange(100) < 5).fits, drift(found, torch.arange(100) < 30).fits
    (True, False)
    """
    from scipy.stats import betabinom  # noqa: PLC0415 (slow to import)

    above, below = calibration.flagged + 1, max(calibration.points - calibration.flagged, 1)
    count, points = int(flagged.sum()), len(flagged)
    if points == 0:
        raise InputError("there are no images to check.")
    alarms = betabinom(points, above, below)
    tail = min(float(alarms.cdf(count)), float(alarms.sf(count - 1)))
    return Drift(points, count, float(alarms.mean()), min(1.0, 2 * tail))
