"""Robust accuracy of a randomised defence, with intervals that cover both points and draws.

The input is what ``judge`` returns: whether each point fools the defence in each of several fresh
evaluations, a bool tensor of shape (points, repeats).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixup_inference.errors import InputError
from mixup_inference.metrics.accuracy import (
    Accuracy,
    IntervalEstimate,
    correlation,
    interval_entry,
    newcombe,
    wilson,
)


@dataclass(frozen=True, eq=False)
class RobustAccuracy:
    """The mean over points and draws of "not fooled", and its "any draw" variant.

    fooled: (points, repeats), as ``judge`` returns it.

    >>> fooled = torch.tensor([[True, True], [True, False], [False, False], [False, False]])
    >>> print(RobustAccuracy(fooled))
    62.5% [25.2%, 89.2%]
    >>> print(RobustAccuracy(fooled).pessimistic)
    50.0% [15.0%, 85.0%]
    """

    fooled: Tensor

    def __post_init__(self) -> None:
        fooled = self.fooled
        if not isinstance(fooled, Tensor) or fooled.dtype != torch.bool or fooled.ndim != 2:
            seen = type(fooled).__name__
            if isinstance(fooled, Tensor):
                seen = f"{fooled.dtype} with shape {tuple(fooled.shape)}"
            needed = "a bool tensor of shape (points, repeats)"
            raise InputError(f"fooled must be {needed}; saw {seen}.")
        if fooled.numel() == 0:
            raise InputError(f"fooled is empty: its shape is {tuple(fooled.shape)}.")

    @property
    def points(self) -> int:
        """The number of attacked points."""
        return self.fooled.shape[0]

    @property
    def repeats(self) -> int:
        """The number of evaluations of each point."""
        return self.fooled.shape[1]

    @property
    def shares(self) -> Tensor:
        """Each point's proportion of correct evaluations."""
        return 1 - self.fooled.double().mean(1)

    @property
    def value(self) -> float:
        """The mean over points and draws."""
        return float(self.shares.mean())

    @property
    def trials(self) -> float:
        """The effective sample size: between one trial per point and one per evaluation.

        Points are independent, draws of one point are not. The variance of the points' shares
        contains both parts, and n = p (1 - p) / Var(mean). Half a pseudo-point is added to the
        variance, one quarter always correct and one quarter always fooled: without it, an
        accuracy near 0% would have a narrower interval than 0% itself.
        """
        extra, shares = 0.25, self.shares
        total = self.points + 2 * extra
        p = (float(shares.sum()) + extra) / total
        variance = (float(shares.square().sum()) + extra) / total - p * p
        ratio = p * (1 - p) / variance if variance > 0 else math.inf
        return self.points * min(max(ratio, 1.0), float(self.repeats))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson interval at the effective sample size."""
        return wilson(self.value * self.trials, self.trials)

    @property
    def pessimistic(self) -> Accuracy:
        """The proportion of points that no draw fools."""
        return Accuracy(int((~self.fooled.any(1)).sum()), self.points)

    def entry(self) -> dict[str, Any]:
        """The entry of results.json."""
        worst = self.pessimistic
        return {
            **interval_entry(self.value, self.interval),
            "points": self.points,
            "repeats": self.repeats,
            "any_draw": interval_entry(worst.value, worst.interval),
        }

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}]"


def paired_difference(a: Tensor, b: Tensor) -> IntervalEstimate:
    """Accuracy(a) - accuracy(b) and its 95% interval, for two attacks on the same points.

    ``a`` and ``b`` are fooled matrices; their repeats may differ. The interval combines the two
    accuracies' own intervals and the correlation of the points' shares. With one repeat it is
    Newcombe's (1998) method 10 for paired proportions. His example:

    >>> a = torch.tensor([0] * 48 + [1] * 2).bool()[:, None]
    >>> b = torch.tensor([0] * 36 + [1] * 12 + [0] * 2).bool()[:, None]
    >>> [round(value, 4) for value in paired_difference(a, b)]
    [0.2, 0.0569, 0.3404]
    """
    one, two = RobustAccuracy(a), RobustAccuracy(b)
    _check_points({"a": a, "b": b})
    return newcombe(
        (one.value, *one.interval), (two.value, *two.interval), correlation(one.shares, two.shares)
    )


def worst_case(
    chosen_on: Mapping[str, Tensor], reported_on: Mapping[str, Tensor]
) -> tuple[Tensor, list[str]]:
    """The strongest attack on each point, chosen on some draws and reported on others.

    Both map an attack's name to its fooled matrix; the draws must differ, or a lucky draw would
    count as strength. A few draws say little about one point, so each attack's share there is
    first shrunk towards its mean over all points, in proportion to the part of its spread that
    chance explains; if chance explains all of it, the attack that is strongest overall is chosen
    everywhere. Returns the fooled matrix on the reporting draws and each point's chosen attack.

    >>> chosen_on = {"A": torch.tensor([[True], [False]]), "B": torch.tensor([[False], [True]])}
    >>> reported_on = {"A": torch.tensor([[True], [True]]), "B": torch.tensor([[True], [False]])}
    >>> worst_case(chosen_on, reported_on)
    (tensor([[ True],
            [False]]), ['A', 'B'])
    """
    names = list(chosen_on)
    if not names or set(names) != set(reported_on):
        raise InputError(
            f"both must name the same attacks; saw {names} to choose from and "
            f"{list(reported_on)} to report."
        )
    for fooled in (*chosen_on.values(), *reported_on.values()):
        RobustAccuracy(fooled)
    _check_points(chosen_on)
    _check_points({"chosen_on": chosen_on[names[0]], **reported_on})
    seen = {name: reported_on[name].shape[1] for name in names}
    if len(set(seen.values())) > 1:
        raise InputError(f"the attacks must be reported with equally many repeats; saw {seen}.")
    strength = torch.stack([_shrunk(chosen_on[name]) for name in names])
    # The slack allows for rounding. Of equals take the first, which argmax does not promise.
    best = (strength >= strength.amax(0) - 1e-9).int().argmax(0)
    answers = torch.stack([reported_on[name] for name in names])
    return answers[best, torch.arange(len(best))], [names[row] for row in best.tolist()]


def _shrunk(fooled: Tensor) -> Tensor:
    """Each point's share of wrong evaluations, shrunk towards the mean over all points.

    The amount of shrinkage is the part of the shares' variance that is binomial.
    """
    shares = fooled.double().mean(1)
    if fooled.shape[1] == 1 or len(fooled) == 1:
        return shares
    spread = float(shares.var())
    chance = float((shares * (1 - shares)).mean()) / (fooled.shape[1] - 1)
    keep = 1.0 if spread == 0 else max(0.0, 1 - chance / spread)
    return shares.mean() + keep * (shares - shares.mean())


def _check_points(fooled: Mapping[str, Tensor]) -> None:
    points = {name: len(matrix) for name, matrix in fooled.items()}
    if len(set(points.values())) > 1:
        raise InputError(f"the attacks must be on the same points; saw {points} points.")
