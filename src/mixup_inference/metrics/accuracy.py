"""Accuracy as a count with an interval, and what it cost in forward passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixup_inference.errors import InputError

#: A value and the two ends of its interval.
Estimate = tuple[float, float, float]

Z95 = 1.959963984540054  # the normal quantile of a 95% interval


@dataclass(frozen=True)
class Accuracy:
    """How many of how many points were classified correctly, and forward passes per image.

    ``prepared``: images that passed before, once for all points (the pool, for a control variate).
    """

    correct: int
    total: int
    passes: float = math.nan
    prepared: int = 0

    @property
    def value(self) -> float:
        """The share of correct points."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson interval."""
        return wilson(self.correct, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}]"


def cell_entry(accuracy: Accuracy) -> dict[str, float]:
    """An accuracy as results.json has it."""
    low, high = accuracy.interval
    entry = {
        "correct": accuracy.correct,
        "total": accuracy.total,
        "accuracy": accuracy.value,
        "low": low,
        "high": high,
    }
    if accuracy.prepared:
        entry["passes_once"] = accuracy.prepared
    return entry if math.isnan(accuracy.passes) else entry | {"passes_per_image": accuracy.passes}


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Estimate:
    """The difference a - b of two accuracies, as results.json has them, and its 95% interval.

    Paired, if both say which points they have right ("right", see ``as_bits``): those that are easy
    for one are mostly easy for the other, so less of the difference is luck of the points.
    """
    one, two = ((cell["accuracy"], cell["low"], cell["high"]) for cell in (a, b))
    if "right" not in a or "right" not in b or a["total"] != b["total"]:
        return newcombe(one, two)
    right = (from_bits(cell["right"], cell["total"]) for cell in (a, b))
    return newcombe(one, two, correlation(*right))


def newcombe(a: Estimate, b: Estimate, r: float = 0.0) -> Estimate:
    """The difference of two values (value, low, high) and its 95% interval, from their own.

    The hybrid score interval, method 10 in both of Newcombe's papers of 1998, on independent
    proportions and on paired ones, which have the correlation ``r``. His example of the first:

    >>> a, b = ((n / total, *wilson(n, total)) for n, total in ((56, 70), (48, 80)))
    >>> [round(value, 4) for value in newcombe(a, b)]
    [0.2, 0.0524, 0.3339]
    """

    def both(u: float, v: float) -> float:
        return math.sqrt(max(u * u - 2 * r * u * v + v * v, 0.0))

    value = a[0] - b[0]
    return value, value - both(a[0] - a[1], b[2] - b[0]), value + both(a[2] - a[0], b[0] - b[1])


def correlation(a: Tensor, b: Tensor) -> float:
    """The correlation over points of two values that each point has; 0 where it is not defined.

    With Newcombe's correction for proportions.
    """
    a, b = a.double(), b.double()
    covariance = float((a * b).mean() - a.mean() * b.mean())
    if covariance > 0:
        covariance = max(covariance - 1 / (2 * len(a)), 0.0)
    spread = math.sqrt(float(a.var(correction=0) * b.var(correction=0)))
    return max(-1.0, min(1.0, covariance / spread)) if spread > 1e-12 else 0.0


def as_bits(right: Tensor) -> str:
    """Which points are right, in hexadecimal digits: a bit each, the first one leading.

    >>> as_bits(torch.tensor([True, False, True, True, False]))
    'b0'
    """
    return np.packbits(right.numpy()).tobytes().hex()


def from_bits(text: str, count: int) -> Tensor:
    """The reverse of ``as_bits``, for so many points.

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
