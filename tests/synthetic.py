"""A classifier F = H + G that obeys the paper's assumptions exactly (Eq. 3 and 4).

An "image" is a vector of L + 2 pixels: L class coordinates (one-hot for a clean sample), one
that varies within a class, v, and one that is zero on the data manifold, t. The perturbation
acts on t alone. H reads the class coordinates, so it is linear and one-hot on clean samples;
G = g(t, v) (q - H) is non-linear, and depends on where it acts through both v and H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 5
TARGET = 3  # the class that the perturbation pushes towards


def class_part(x: Tensor) -> Tensor:
    """H(x), linear in x."""
    return x.flatten(1)[:, :CLASSES]


def push(t: Tensor, v: Tensor) -> Tensor:
    """g(t, v): zero on the manifold, convex in t."""
    return t**2 * (0.7 + 0.3 * v)


def extra_part(x: Tensor, t: Tensor) -> Tensor:
    """G(t; x), given the unperturbed x and the perturbation's size."""
    q = torch.eye(CLASSES, dtype=x.dtype)[TARGET]
    v = x.flatten(1)[:, CLASSES]
    return push(t, v)[:, None] * (q - class_part(x))


class LinearPlusG(nn.Module):
    """Returns log F, whose softmax is F itself."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log((class_part(x) + extra_part(x, x.flatten(1)[:, -1])).clamp(min=1e-300))


def clean_samples(per_class: int) -> tuple[Tensor, Tensor]:
    """Equally many clean samples of each class, in float64."""
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    x = torch.zeros(len(labels), 1, 1, CLASSES + 2, dtype=torch.float64)
    x[torch.arange(len(labels)), 0, 0, labels] = 1
    generator = torch.Generator().manual_seed(0)
    x[:, 0, 0, CLASSES] = torch.rand(len(labels), generator=generator, dtype=torch.float64)
    return x, labels


def perturb(x: Tensor, size: float) -> Tensor:
    """x_0 + delta."""
    out = x.clone()
    out[..., -1] = size
    return out
