"""The closed forms of Section 3.2, for a classifier that obeys Eq. 3 and 4.

Such a classifier is F = H + G, with H linear and one-hot on clean samples, and G zero on them.
All that is left to know is lam, the number of classes L, and G's components y and y_hat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mixup_inference.errors import unknown_name
from mixup_inference.validation import check_int, check_number

Kind = Literal["mi-pl", "mi-ol"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Terms:
    """What the perturbation adds to F: G's components y and y_hat, before and after mixing.

    ``y`` and ``y_hat`` are G_k(delta; x0); ``y_mi`` and ``y_hat_mi`` are the expectations over
    p_s of G_k(lam delta; x~0).
    """

    y: float
    y_hat: float
    y_mi: float
    y_hat_mi: float


@dataclass(frozen=True)
class Column:
    """One column of Table 1: the components y and y_hat of F(x), and of E[F(x~)] over p_s."""

    y: float
    y_hat: float
    y_mi: float
    y_hat_mi: float

    @property
    def delta_y(self) -> float:
        """Delta F_y (Eq. 9)."""
        return self.y_mi - self.y

    @property
    def delta_y_hat(self) -> float:
        """Delta F_yhat (Eq. 9)."""
        return self.y_hat_mi - self.y_hat


@dataclass(frozen=True)
class Bounds:
    """What E[G_k(delta; x0) - G_k(lam delta; x~0)] must be: below ``y``, above ``y_hat``."""

    y: float
    y_hat: float


def table_1(kind: Kind, *, lam: float, classes: int, terms: Terms | None = None) -> Column:
    """A column of Table 1, in expectation over y_s: z = 1 with G's terms, z = 0 without.

    >>> table_1("mi-ol", lam=0.5, classes=10)
    Column(y=1.0, y_hat=1.0, y_mi=0.5, y_hat_mi=0.5)
    >>> table_1("mi-pl", lam=0.5, classes=10, terms=Terms(-1.0, 1.0, -0.25, 0.25))
    Column(y=0.0, y_hat=1.0, y_mi=0.25, y_hat_mi=0.75)
    """
    check_arguments(kind, lam, classes)
    same = 1.0 if kind == "mi-pl" else 0.0  # P(y_s = y_hat)
    if terms is None:  # z = 0, where y = y_hat (Eq. 2)
        after = lam + (1 - lam) * same
        return Column(1.0, 1.0, after, after)
    true = 0.0 if kind == "mi-pl" else 1 / (classes - 1)  # P(y_s = y)
    return Column(
        y=1 + terms.y,  # Eq. 7
        y_hat=terms.y_hat,  # Eq. 8
        y_mi=lam + (1 - lam) * true + terms.y_mi,
        y_hat_mi=(1 - lam) * same + terms.y_hat_mi,
    )


def improves_robustness(adversarial: Column) -> bool:
    """The robustness improving condition (Eq. 10), on a column for z = 1."""
    return adversarial.delta_y > 0 and adversarial.delta_y_hat < 0


def ric_bounds(kind: Kind, *, lam: float, classes: int) -> Bounds:
    """The robustness improving condition as bounds on G: Eq. 12 (MI-PL), Eq. 15 (MI-OL).

    Where Eq. 3 and 4 hold, this is the same condition as Eq. 10.

    >>> ric_bounds("mi-pl", lam=0.5, classes=11), ric_bounds("mi-ol", lam=0.5, classes=11)
    (Bounds(y=-0.5, y_hat=0.5), Bounds(y=-0.45, y_hat=0.0))
    """
    check_arguments(kind, lam, classes)
    if kind == "mi-pl":
        return Bounds(y=lam - 1, y_hat=1 - lam)
    return Bounds(y=(lam - 1) * (classes - 2) / (classes - 1), y_hat=0.0)


def detection_gap(clean: Column, adversarial: Column) -> float:
    """E[score | z = 1] - E[score | z = 0] for the score -Delta F_yhat; higher is better.

    This is Eq. 11 with the opposite sign. As printed, Eq. 11 is the gap of +Delta F_yhat, which
    contradicts "higher is better" and the two equations derived from it, 14 and 16.
    """
    return clean.delta_y_hat - adversarial.delta_y_hat


def detection_gap_of(change: float, *, lam: float) -> float:
    """The detection gap from E[G_yhat(delta; x0) - G_yhat(lam delta; x~0)] (Eq. 14 and 16).

    One formula for both kinds. The two gaps are equal when that expectation is, which is over
    different x_s: MI-PL's and MI-OL's x~0 must weaken the perturbation equally on average.
    """
    return change - (1 - lam)


def keeps_clean_predictions(lam: float, *, classes: int) -> bool:
    """Whether MI-OL leaves a clean point's class on top: lam > 1 / L (Eq. 17)."""
    check_arguments("mi-ol", lam, classes)
    return lam > 1 / classes


def check_arguments(kind: Kind, lam: float, classes: int) -> None:
    """Refuse arguments that the formulas do not cover."""
    if kind not in KINDS:
        raise unknown_name("kind of mixup inference", kind, KINDS)
    check_number(lam, what="lam", least=0, most=1)
    check_int(classes, what="classes", least=2)
