"""Objectives of attacks: losses of the predictions of K draws, one value per point.

All take log-probabilities of shape (points, draws, classes), the true labels, and the target
classes if the attack is targeted; larger is better for the attacker. ``mean-ce`` averages the
losses of the draws. The others are losses of the averaged prediction, the answer of a defence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mixup_inference.defenses import mean_prediction
from mixup_inference.errors import InputError, unknown_name

LossName = Literal["ce", "mean-ce", "margin", "log-margin", "dlr"]
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def cross_entropy(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Cross-entropy of the mean prediction: -log of the mean probability."""
    return _towards(mean_prediction(log_p), y, target)


def mean_cross_entropy(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Mean over the draws of their cross-entropies."""
    return _towards(log_p.mean(1), y, target)


def margin(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Lead of the best wrong class in the mean prediction, in probability."""
    return _lead(mean_prediction(log_p).exp(), y, target)


def log_margin(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Lead of the best wrong class in the logarithm of the mean prediction.

    For a model without randomness this is the difference of logits.
    """
    return _lead(mean_prediction(log_p), y, target)


def dlr(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Difference of logits ratio (Croce and Hein, 2020), with log-probabilities as logits.

    It is the same for logits and for their log-softmax. It divides by the distance from the first
    to the third class, or, targeted, to the mean of the third and fourth. With too few classes for
    that it is ``log_margin``: also targeted with three, where a ratio of the distance from the
    first to the third would be -1 with no gradient while y leads and the target is last.
    """
    z = mean_prediction(log_p)
    if z.shape[1] < (3 if target is None else 4):
        return log_margin(log_p, y, target)
    ranked = z.sort(dim=1, descending=True).values
    if target is None:
        return _lead(z, y, None) / (ranked[:, 0] - ranked[:, 2] + 1e-12)
    low = ranked[:, 2:4].mean(1)
    return (_at(z, target) - _at(z, y)) / (ranked[:, 0] - low + 1e-12)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "mean-ce": mean_cross_entropy,
    "margin": margin,
    "log-margin": log_margin,
    "dlr": dlr,
}


def get_loss(name: str) -> Loss:
    """Return a loss by its name."""
    if not isinstance(name, str) or name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name]


def _at(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None]).squeeze(1)


def _towards(log_p: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    return -_at(log_p, y) if target is None else _at(log_p, target)


def _lead(values: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Return the lead of the best class over y, or of the target over the best other class."""
    if values.shape[1] < 2:
        raise InputError("a margin needs at least two classes.")
    one = y if target is None else target
    others = values.scatter(1, one[:, None], -torch.inf).amax(1)
    lead = others - _at(values, one)
    return lead if target is None else -lead
