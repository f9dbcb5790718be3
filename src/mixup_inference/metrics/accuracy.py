"""Accuracy with its interval and cost, and 95% intervals of means and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixup_inference.errors import InputError

#: A value and the two ends of its 95% interval.
IntervalEstimate = tuple[float, float, float]

Z95 = 1.959963984540054  # the normal quantile of a 95% interval


@dataclass(frozen=True)
class Accuracy:
    """The number of points classified correctly, and forward passes per image.

    ``prepared``: one-off forward passes for all points (the pool, for a control variate).
    """

    correct: int
    total: int
    passes: float = math.nan
    prepared: int = 0

    @property
    def value(self) -> float:
        """The proportion of correct points."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson interval."""
        return wilson(self.correct, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}]"


def cell_entry(accuracy: Accuracy) -> dict[str, float]:
    """An accuracy as an entry of results.json."""
    counts = {"correct": accuracy.correct, "total": accuracy.total}
    entry = counts | interval_entry(accuracy.value, accuracy.interval)
    if accuracy.prepared:
        entry["passes_once"] = accuracy.prepared
    return entry if math.isnan(accuracy.passes) else entry | {"passes_per_image": accuracy.passes}


def interval_entry(value: float, interval: tuple[float, float]) -> dict[str, float]:
    """An accuracy and its interval as they stand in results.json."""
    return {"accuracy": value, "low": interval[0], "high": interval[1]}


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> IntervalEstimate:
    """The difference a - b of two accuracies (entries of results.json) and its 95% interval.

    Paired if both entries list their correct points ("right", see ``as_bits``): points that are
    easy for one are mostly easy for the other, so the paired interval is narrower.
    """
    one, two = ((cell["accuracy"], cell["low"], cell["high"]) for cell in (a, b))
    if "right" not in a or "right" not in b or a["total"] != b["total"]:
        return newcombe(one, two)
    right = (from_bits(cell["right"], cell["total"]) for cell in (a, b))
    return newcombe(one, two, correlation(*right))


def newcombe(a: IntervalEstimate, b: IntervalEstimate, r: float = 0.0) -> IntervalEstimate:
    """The difference of two estimates (value, low, high) and its 95% interval.

    The hybrid score interval, method 10 in both of Newcombe's papers of 1998: for independent
    proportions, and for paired ones with the correlation ``r``. His example of the first:

    >>> a, b = ((n / total, *wilson(n, total)) for n, total in ((56, 70), (48, 80)))
    >>> [round(value, 4) for value in newcombe(a, b)]
    [0.2, 0.0524, 0.3339]
    """

    def both(u: float, v: float) -> float:
        return math.sqrt(max(u * u - 2 * r * u * v + v * v, 0.0))

    value = a[0] - b[0]
    return value, value - both(a[0] - a[1], b[2] - b[0]), value + both(a[2] - a[0], b[0] - b[1])


def correlation(a: Tensor, b: Tensor) -> float:
    """The correlation of two values per point, with Newcombe's correction; 0 if undefined."""
    a, b = a.double(), b.double()
    covariance = float((a * b).mean() - a.mean() * b.mean())
    if covariance > 0:
        covariance = max(covariance - 1 / (2 * len(a)), 0.0)
    spread = math.sqrt(float(a.var(correction=0) * b.var(correction=0)))
    return max(-1.0, min(1.0, covariance / spread)) if spread > 1e-12 else 0.0


def as_bits(right: Tensor) -> str:
    """Pack a bool per point into hexadecimal digits, the first point in the leading bit.

    >>> as_bits(torch.tensor([True, False, True, True, False]))
    'b0'
    """
    return np.packbits(right.numpy()).tobytes().hex()


def from_bits(text: str, count: int) -> Tensor:
    """Unpack what ``as_bits`` has packed for ``count`` points.

    >>> from_bits("b0", 5)
    tensor([ True, False,  True,  True, False])
    """
    try:
        packed = bytes.fromhex(text)
    except (TypeError, ValueError):
        packed = b""
    if len(packed) != math.ceil(count / 8):
        raise InputError(f"{text!r:.40} does not say which of {count} points are right.")
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))


def mean_interval(mean: float, se: float, count: int) -> IntervalEstimate:
    """A mean of ``count`` values with this standard error, and its 95% interval (Student's t).

    >>> [round(value, 3) for value in mean_interval(1.0, 0.1, count=5)]
    [1.0, 0.722, 1.278]
    """
    from scipy.special import stdtrit  # noqa: PLC0415 (slow to import)

    arm = float(stdtrit(max(count - 1, 1), 0.975)) * se
    return mean, mean - arm, mean + arm


def wilson(correct: float, total: float, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval of a proportion, 95% by default (no continuity correction).

    >>> low, high = wilson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.037)
    """
    if not 0 <= correct <= total or total == 0:
        raise InputError(f"a proportion needs 0 <= correct <= total; saw {correct} of {total}.")
    p, z2 = correct / total, z**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = z * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    # The ends are exact where the proportion is: rounding must not leave [0, 1].
    return (0.0 if correct == 0 else centre - half, 1.0 if correct == total else centre + half)
