"""p_s(y): from which class a clean sample is drawn, given the prediction (Section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixup_inference.errors import InputError, unknown_name

LabelRule = Callable[[Tensor, Tensor], Tensor]

Labels = Literal["other", "predicted"] | Tensor | Sequence[float] | LabelRule


def label_rule(labels: Labels, classes: int) -> LabelRule:
    """p_s(y) as a function of y_hat and uniform numbers; a function that can be pickled."""
    if isinstance(labels, str):
        return _named_rule(labels, classes)
    if callable(labels) and not isinstance(labels, Tensor):
        return _Checked(labels, classes)
    try:
        weights = torch.as_tensor(labels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "labels must be 'other', 'predicted', class probabilities or a function "
            f"(y_hat, u) -> labels; saw {labels!r}."
        ) from None
    if (
        weights.shape != (classes,)
        or not bool((weights >= 0).all())
        or abs(weights.sum() - 1) > 1e-6
    ):
        raise InputError(
            f"labels as probabilities must be {classes} non-negative numbers that sum to 1; "
            f"saw {weights.tolist()}."
        )
    last = int(torch.nonzero(weights)[-1])  # rounding must not let u reach a class of weight 0
    return _Weighted(torch.cumsum(weights, 0)[:last])


def _named_rule(name: str, classes: int) -> LabelRule:
    if name == "predicted":
        return _predicted
    if name != "other":
        raise unknown_name("label rule", name, ["other", "predicted"])
    if classes < 2:
        raise InputError(f"labels='other' needs at least two classes; the pool has {classes}.")
    return _Other(classes)


def _predicted(y_hat: Tensor, _: Tensor) -> Tensor:
    """MI-PL: p_s(y) = 1 for y = y_hat."""
    return y_hat


@dataclass(frozen=True)
class _Other:
    """MI-OL: uniform on the L - 1 labels other than y_hat."""

    classes: int

    def __call__(self, y_hat: Tensor, u: Tensor) -> Tensor:
        y_s = (u * (self.classes - 1)).long()  # 0..L-2; skip over y_hat
        return y_s + (y_s >= y_hat).long()


@dataclass(frozen=True)
class _Weighted:
    """Given class probabilities, whatever y_hat is."""

    cumulative: Tensor

    def __call__(self, _: Tensor, u: Tensor) -> Tensor:
        return torch.bucketize(u, self.cumulative.to(u.device), right=True)


@dataclass(frozen=True)
class _Checked:
    """A caller's own rule, with its answers checked."""

    rule: LabelRule
    classes: int

    def __call__(self, y_hat: Tensor, u: Tensor) -> Tensor:
        y_s = self.rule(y_hat, u)
        if not isinstance(y_s, Tensor) or y_s.shape != u.shape or y_s.is_floating_point():
            seen = f"{y_s.dtype} of shape {tuple(y_s.shape)}" if isinstance(y_s, Tensor) else y_s
            raise InputError(
                f"the labels function must return integers of shape {tuple(u.shape)}; saw {seen}."
            )
        if bool((y_s < 0).any()) or bool((y_s >= self.classes).any()):
            raise InputError(
                f"the labels function returned a label outside 0..{self.classes - 1}: it lies in "
                f"[{int(y_s.min())}, {int(y_s.max())}]."
            )
        return y_s.long()


def rule_weights(rule: LabelRule, classes: int) -> Tensor | None:
    """p_s(y) as a matrix, one row for each y_hat; None for a caller's own rule."""
    every = torch.eye(classes, dtype=torch.float64)
    if rule is _predicted:
        return every
    if isinstance(rule, _Other):
        return (1 - every) / (classes - 1)
    if isinstance(rule, _Weighted):
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        edges = torch.cat([ends[:1], rule.cumulative.cpu(), ends[1:]])
        weights = torch.zeros(classes, dtype=torch.float64)
        weights[: len(edges) - 1] = edges.diff()
        return weights.expand(classes, -1)
    return None


def other_labels(rule: LabelRule) -> int | None:
    """How many labels there are to choose from with equal weight, if the rule is MI-OL's."""
    return rule.classes - 1 if isinstance(rule, _Other) else None
