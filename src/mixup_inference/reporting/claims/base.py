"""A claim of the paper, and the rule by which intervals decide it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mixup_inference.metrics.accuracy import IntervalEstimate

Verdict = Literal["holds", "does not hold", "undecided"]

#: Differences in accuracy below this are negligible.
MARGIN = 0.03

#: The defence that the paper's claims are about.
CLAIMED = "mi-ol"


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, and what this run says about it."""

    id: str
    statement: str
    source: str
    verdict: Verdict
    evidence: str
    estimates: tuple[IntervalEstimate, ...]  # what decides the verdict
    about: tuple[str, ...] = ()  # rows, models, or scores


def verdict_of(gains: Iterable[IntervalEstimate], *, min_effect: float = 0.0) -> Verdict:
    """Whether all of these are gains, by their 95% intervals.

    The claim holds if every interval lies above zero. It does not hold if an interval reaches zero
    and lies below ``min_effect``.

    >>> verdict_of([(0.1, 0.05, 0.15)]), verdict_of([(0.1, -0.05, 0.25)])
    ('holds', 'undecided')
    >>> verdict_of([(0.1, 0.05, 0.15), (0.0, -0.01, 0.01)], min_effect=0.03)
    'does not hold'
    """
    given = list(gains)
    if given and all(low > 0 for _, low, _ in given):
        return "holds"
    if any(low <= 0 and high < min_effect for _, low, high in given):
        return "does not hold"
    return "undecided"
