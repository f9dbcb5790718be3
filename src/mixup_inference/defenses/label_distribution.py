"""p_s(y): from which class a clean sample is drawn, given the prediction (Section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mixup_inference.errors import InputError, unknown_name

Sampler = Callable[[Tensor, Tensor], Tensor]

Labels = Literal["other", "predicted"] | Tensor | Sequence[float] | Sampler


@dataclass(frozen=True, eq=False)
class LabelDistribution:
    """p_s(y), of functions that can be pickled.

    Attributes:
        sample: y_s ~ p_s(y) as a function of y_hat and uniform numbers u on [0, 1), both of shape
            (samples, draws).
        weights: p_s(y) as a matrix, one row for each y_hat; None if it is not known.
        round: how many stratified draws are a round.
    """

    sample: Sampler
    weights: Callable[[], Tensor] | None
    round: int


def label_distribution(labels: Labels, classes: int) -> LabelDistribution:
    """p_s(y) by its name, from class probabilities, or from a function ``(y_hat, u) -> y_s``."""
    if isinstance(labels, str):
        return _named(labels, classes)
    if callable(labels) and not isinstance(labels, Tensor):
        return LabelDistribution(partial(_checked, labels, classes), None, classes)
    try:
        weights = torch.as_tensor(labels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "labels must be 'other', 'predicted', class probabilities or a function "
            f"(y_hat, u) -> labels; saw {labels!r}."
        ) from None
    proper = weights.shape == (classes,) and bool((weights >= 0).all())
    if not proper or abs(weights.sum() - 1) > 1e-6:
        raise InputError(
            f"labels as probabilities must be {classes} non-negative numbers that sum to 1; "
            f"saw {weights.tolist()}."
        )
    last = int(torch.nonzero(weights)[-1])  # rounding must not let u reach a class of weight 0
    edges = torch.cumsum(weights, 0)[:last]
    return LabelDistribution(partial(_weighted, edges), partial(_shares, edges, classes), classes)


def _named(name: str, classes: int) -> LabelDistribution:
    if name == "predicted":
        return LabelDistribution(_predicted, partial(_identity, classes), classes)
    if name != "other":
        raise unknown_name("label distribution", name, ["other", "predicted"])
    if classes < 2:
        raise InputError(f"labels='other' needs at least two classes; the pool has {classes}.")
    return LabelDistribution(partial(_other, classes), partial(_others, classes), classes - 1)


def _predicted(y_hat: Tensor, _: Tensor) -> Tensor:
    """MI-PL: p_s(y) = 1 for y = y_hat."""
    return y_hat


def _identity(classes: int) -> Tensor:
    return torch.eye(classes, dtype=torch.float64)


def _other(classes: int, y_hat: Tensor, u: Tensor) -> Tensor:
    """MI-OL: uniform on the L - 1 labels other than y_hat."""
    y_s = (u * (classes - 1)).long()  # 0..L-2; skip over y_hat
    return y_s + (y_s >= y_hat).long()


def _others(classes: int) -> Tensor:
    return (1 - _identity(classes)) / (classes - 1)


def _weighted(edges: Tensor, _: Tensor, u: Tensor) -> Tensor:
    """Given class probabilities, whatever y_hat is."""
    return torch.bucketize(u, edges.to(u.device), right=True)


def _shares(edges: Tensor, classes: int) -> Tensor:
    zero, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    shares = torch.cat([zero, edges.cpu(), one]).diff()
    return torch.cat([shares, zero.expand(classes - len(shares))]).expand(classes, -1)


def _checked(function: Sampler, classes: int, y_hat: Tensor, u: Tensor) -> Tensor:
    """A caller's own function, with its labels checked."""
    y_s = function(y_hat, u)
    if not isinstance(y_s, Tensor) or y_s.shape != u.shape or y_s.is_floating_point():
        seen = f"{y_s.dtype} of shape {tuple(y_s.shape)}" if isinstance(y_s, Tensor) else y_s
        raise InputError(
            f"the labels function must return integers of shape {tuple(u.shape)}; saw {seen}."
        )
    if bool((y_s < 0).any()) or bool((y_s >= classes).any()):
        raise InputError(
            f"the labels function returned a label outside 0..{classes - 1}: it lies in "
            f"[{int(y_s.min())}, {int(y_s.max())}]."
        )
    return y_s.long()
