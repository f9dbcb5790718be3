"""F on the pool's own images, computed once: the control variate of mixup inference.

If F were linear between x and x_s (Eq. 3), F(x~) = lam F(x) + (1 - lam) F(x_s): what a draw of
x_s adds by chance is (1 - lam) (F(x_s) - E F(x_s)). It is known without another pass at test time,
and its expectation is zero whatever F is, so it can be subtracted.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.defenses.base import Defense
from mixup_inference.defenses.label_distribution import LabelDistribution
from mixup_inference.errors import InputError
from mixup_inference.models.call import dtype_of, state_of
from mixup_inference.pool import Pool
from mixup_inference.validation import as_pixels


class ControlVariate(nn.Module):
    """softmax F(x_s) for every image of a pool, and its expectation mu for each y_hat."""

    each: Tensor  # (images, classes)
    mean: Tensor  # (classes, classes): mu, one row for each y_hat
    _weights: Tensor

    def __init__(self, p_s: LabelDistribution) -> None:
        super().__init__()
        if p_s.weights is None:
            raise InputError(
                "the control variate needs to know how often each label is drawn; give labels as "
                "'other', 'predicted' or probabilities, or leave control_variate out."
            )
        self._made_for: Any = None
        self.register_buffer("_weights", p_s.weights(), persistent=False)
        self.register_buffer("each", torch.zeros(0), persistent=False)
        self.register_buffer("mean", torch.zeros(0), persistent=False)

    def update(self, defense: Defense, pool: Pool) -> int:
        """Pass F over the pool if the model has changed; return the number of forward passes."""
        state = state_of(defense.model)
        if self._made_for == state:
            return 0
        dtype, at_once = dtype_of(defense.model), defense._chunk_size(pool.images)
        with torch.no_grad():
            images = (as_pixels(part, dtype) for part in pool.images.split(at_once))
            parts = [defense._classify(part) for part in images]
        self.each = torch.cat(parts).exp()
        by_class = torch.zeros(
            pool.classes, pool.classes, dtype=torch.float64, device=self.each.device
        )
        for some, labels in zip(self.each.split(at_once), pool.labels.split(at_once), strict=True):
            by_class.index_add_(0, labels, some.double())
        by_class /= torch.bincount(pool.labels, minlength=pool.classes)[:, None]
        self.mean = (self._weights.to(by_class) @ by_class).to(dtype)
        self._made_for = state
        return len(pool)

    def for_model(self, model: nn.Module) -> Self:
        """The same predictions, taken to be those of a copy of the model."""
        twin = copy.copy(self)
        twin._made_for = state_of(model)
        return twin

    def by_chance(self, y_hat: Tensor, lam: Tensor, numbers: Tensor) -> Tensor:
        """What the drawn x_s contribute by chance to the mean prediction, (samples, classes).

        Args:
            y_hat: the predictions that the labels were drawn for.
            lam: the ratio of each draw, (samples, draws).
            numbers: of the pool's images, (samples, draws).
        """
        weight = (1 - lam).to(self.each) / numbers.shape[1]
        drawn = functional.embedding_bag(numbers, self.each, per_sample_weights=weight, mode="sum")
        out: Tensor = drawn - weight.sum(1, keepdim=True) * self.mean[y_hat]
        return out

    def spread(self) -> float:
        """The largest difference of two components of mu."""
        low, high = torch.aminmax(self.mean, dim=1)
        return float((high - low).max())


def log_of(p: Tensor) -> Tensor:
    """The logarithm of predictions that may have slightly negative components.

    They are clamped and normalised first; the largest component stays the largest.
    """
    p = p.clamp(min=torch.finfo(p.dtype).tiny)
    return torch.log(p / p.sum(1, keepdim=True))
