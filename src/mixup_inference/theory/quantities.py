"""What is measured of Section 3.2, and how it follows from a model's predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from mixup_inference.theory.formulas import (
    Column,
    Kind,
    Terms,
    detection_gap_of,
    ric_bounds,
    table_1,
)


@dataclass(frozen=True)
class Estimate:
    """A mean over points and its standard error, which includes the noise of their draws."""

    mean: float
    se: float


@dataclass(frozen=True)
class Counts:
    """How many points were used, and how many violate Eq. 2 and why.

    A point that is wrong without any attack counts as that, whatever the attack did to it.
    """

    used: int
    clean_wrong: int
    attack_failed: int


@dataclass(frozen=True)
class Predictions:
    """F(x) and F_MI(x) for one z: components, their change (Eq. 9), and what Table 1 predicts.

    The theory for z = 1 takes G's terms as measured and H as ideal, so a distance between it and
    the measurement is a distance of F on clean points and their mixtures from the ideal H.
    """

    y: Estimate
    y_hat: Estimate
    y_mi: Estimate
    y_hat_mi: Estimate
    delta_y: Estimate
    delta_y_hat: Estimate
    theory: Column


@dataclass(frozen=True)
class Mechanisms:
    """One component k of G at three places, and the two mechanisms of Eq. 13.

    ``change`` is E[G_k(delta; x0) - G_k(lam delta; x~0)], the sum of the two mechanisms, and
    ``bound`` what the robustness improving condition compares it with (Eq. 12 and 15).
    """

    at_x0: Estimate  # G_k(delta; x0)
    at_mixed: Estimate  # G_k(delta; x~0)
    at_mixed_shrunk: Estimate  # G_k(lam delta; x~0)
    input_transfer: Estimate
    perturbation_shrinkage: Estimate
    change: Estimate
    bound: float


@dataclass(frozen=True)
class Condition:
    """Whether a condition holds on average, and for how many of the points by themselves.

    A single point's averages are over its draws only, so its verdict is noisy when it is close.
    """

    holds: bool
    points: int
    total: int


@dataclass(frozen=True)
class Analysis:
    """Section 3.2 measured. ``dataclasses.asdict`` turns it into what JSON can hold."""

    kind: Kind
    lam: float
    classes: int
    draws: int
    counts: Counts
    clean: Predictions  # z = 0
    adversarial: Predictions  # z = 1
    y: Mechanisms
    y_hat: Mechanisms
    ric: Condition  # Eq. 10, on F
    ric_on_g: Condition  # Eq. 12 or 15, on G; the same as Eq. 10 if F were ideally linear
    detection_gap: Estimate  # with the sign of Eq. 14 and 16: higher is better
    detection_gap_theory: float


@dataclass(frozen=True)
class Passes:
    """F at six places for each point, averaged over the draws where there are any.

    Each is a table of shape (points, classes). The three means at x~0 share their partners.
    """

    clean: Tensor  # F(x0)
    clean_mi: Tensor  # E F(lam x0 + (1 - lam) x_s), with x_s drawn for the clean prediction
    adversarial: Tensor  # F(x0 + delta)
    adversarial_mi: Tensor  # E F(x~) = E F(x~0 + lam delta)
    mixed: Tensor  # E F(x~0), with x_s drawn for the adversarial prediction
    mixed_unshrunk: Tensor  # E F(x~0 + delta)


def estimate(values: Tensor) -> Estimate:
    """The mean of the points' values and its standard error."""
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))))


def summarize(
    passes: Passes, y: Tensor, *, kind: Kind, lam: float, draws: int, counts: Counts
) -> Analysis:
    """All quantities of an Analysis from F's predictions at points that satisfy Eq. 2."""
    y_hat = passes.adversarial.argmax(1)
    classes = passes.clean.shape[1]
    bounds = ric_bounds(kind, lam=lam, classes=classes)
    on_y = _mechanisms(passes, y, bounds.y)
    on_y_hat = _mechanisms(passes, y_hat, bounds.y_hat)
    terms = Terms(
        y=on_y.at_x0.mean,
        y_hat=on_y_hat.at_x0.mean,
        y_mi=on_y.at_mixed_shrunk.mean,
        y_hat_mi=on_y_hat.at_mixed_shrunk.mean,
    )
    ideal = table_1(kind, lam=lam, classes=classes)
    clean = _predictions(passes.clean, passes.clean_mi, y, y, theory=ideal)  # y_hat = y by Eq. 2
    before, after = passes.adversarial, passes.adversarial_mi
    theory = table_1(kind, lam=lam, classes=classes, terms=terms)
    delta = after - before  # Eq. 9
    change = before - passes.clean - (after - passes.mixed)
    score_clean = _at(passes.clean - passes.clean_mi, y)
    return Analysis(
        kind=kind,
        lam=lam,
        classes=classes,
        draws=draws,
        counts=counts,
        clean=clean,
        adversarial=_predictions(before, after, y, y_hat, theory=theory),
        y=on_y,
        y_hat=on_y_hat,
        ric=_condition(_at(delta, y), _at(-delta, y_hat)),
        ric_on_g=_condition(bounds.y - _at(change, y), _at(change, y_hat) - bounds.y_hat),
        # Eq. 11 as printed is the negative. The points are the same, so the error is paired.
        detection_gap=estimate(_at(-delta, y_hat) - score_clean),
        detection_gap_theory=detection_gap_of(on_y_hat.change.mean, lam=lam),
    )


def _at(table: Tensor, labels: Tensor) -> Tensor:
    """Each point's component with its own label."""
    return table.gather(1, labels[:, None])[:, 0]


def _predictions(
    before: Tensor, after: Tensor, y: Tensor, y_hat: Tensor, *, theory: Column
) -> Predictions:
    return Predictions(
        y=estimate(_at(before, y)),
        y_hat=estimate(_at(before, y_hat)),
        y_mi=estimate(_at(after, y)),
        y_hat_mi=estimate(_at(after, y_hat)),
        delta_y=estimate(_at(after - before, y)),
        delta_y_hat=estimate(_at(after - before, y_hat)),
        theory=theory,
    )


def _mechanisms(passes: Passes, labels: Tensor, bound: float) -> Mechanisms:
    at_x0 = _at(passes.adversarial - passes.clean, labels)
    at_mixed = _at(passes.mixed_unshrunk - passes.mixed, labels)
    at_mixed_shrunk = _at(passes.adversarial_mi - passes.mixed, labels)
    return Mechanisms(
        at_x0=estimate(at_x0),
        at_mixed=estimate(at_mixed),
        at_mixed_shrunk=estimate(at_mixed_shrunk),
        input_transfer=estimate(at_x0 - at_mixed),
        perturbation_shrinkage=estimate(at_mixed - at_mixed_shrunk),
        change=estimate(at_x0 - at_mixed_shrunk),
        bound=bound,
    )


def _condition(one: Tensor, other: Tensor) -> Condition:
    """That two margins are positive: their means, and each point's."""
    points, holds = (one > 0) & (other > 0), bool(one.mean() > 0) and bool(other.mean() > 0)
    return Condition(holds, int(points.sum()), len(points))
