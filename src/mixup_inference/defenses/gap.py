"""The gap between the predictions before and after mixup inference, which detects (Section 3.2)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mixup_inference.validation import check_choice

Convention = Literal["paper", "official"]


def gap(before: Tensor, after: Tensor, convention: Convention = "paper") -> Tensor:
    """How much the confidence fell under mixup inference; larger = more suspicious.

    "paper": F_yhat(x) - F_MI,yhat(x) = -Delta F_yhat (Eq. 9, with the sign of Eq. 14).
    "official": max F(x) - max F_MI(x), as the published code has it.
    Both arguments are log-probabilities.
    """
    check_convention(convention)
    p, p_mi = before.exp(), after.exp()
    if convention == "official":
        return p.amax(1) - p_mi.amax(1)
    y_hat = before.detach().argmax(1, keepdim=True)
    return (p.gather(1, y_hat) - p_mi.gather(1, y_hat)).squeeze(1)


def check_convention(convention: Convention) -> Convention:
    """One of the two readings of the detection score."""
    return check_choice(convention, what="convention", known=("paper", "official"))
