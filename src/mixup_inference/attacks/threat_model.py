"""Where an attack may go: the ball of a norm within [0, 1], and the one loop that climbs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixup_inference.draws import Draws
from mixup_inference.errors import unknown_name
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_number

Norm = Literal["linf", "l2"]


@dataclass(frozen=True)
class Ball:
    """The geometry of a norm: where to start, how to step, how to come back."""

    norm: Norm
    eps: float

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise unknown_name("norm", self.norm, ["linf", "l2"])
        check_number(self.eps, what="eps", least=0)

    def start(self, x: Tensor, index: Tensor, key: int) -> Tensor:
        """A uniformly random point of the ball around each x."""
        draws = Draws.once(key, index)
        shape = tuple(x.shape[1:])
        if self.norm == "linf":
            delta = self.eps * (2 * draws.uniform_block(0, shape)[:, 0].to(x.dtype) - 1)
        else:
            direction = draws.normal(0, shape)[:, 0].to(x.dtype)
            radius = draws.uniform(1)[:, 0].to(x.dtype) ** (1 / x[0].numel())
            delta = self.eps * per_sample(radius) * direction / per_sample(length(direction))
        return self.project(x, x + delta)

    def move(self, image: Tensor, gradient: Tensor, size: Tensor | float) -> Tensor:
        """One step uphill; ``size`` is a number or one per sample."""
        far = per_sample(size) if isinstance(size, Tensor) else size
        if self.norm == "linf":
            return image + far * gradient.sign()
        return image + far * gradient / per_sample(_positive(length(gradient)))

    def project(self, x: Tensor, image: Tensor) -> Tensor:
        """The nearest point that is in the ball, then in [0, 1] (which cannot leave the ball)."""
        delta = image - x
        if self.norm == "linf":
            delta = delta.clamp(-self.eps, self.eps)
        else:
            delta = delta * per_sample((self.eps / _positive(length(delta))).clamp(max=1))
        return (x + delta).clamp(0, 1)


def climb(
    x: Tensor,
    start: Tensor,
    ball: Ball,
    gradient: Callable[[Tensor, int], Tensor],
    sizes: list[float],
    *,
    momentum: float = 0.0,
) -> Iterator[Tensor]:
    """The one loop of gradient attacks: gradient, step, project; yields every iterate.

    Args:
        x: the clean images.
        start: the first iterate, which is yielded too.
        ball: where the iterates stay.
        gradient: of what is climbed, at an iterate and the number of its step.
        sizes: of the steps.
        momentum: how much of the last direction is kept; gradients are then added up after
            scaling each to length one in L1, as Dong et al. (2018) do.
    """
    image, direction = start, torch.zeros_like(x)
    yield image
    for step, size in enumerate(sizes):
        found = gradient(image, step)
        if momentum:
            scale = _positive(found.abs().flatten(1).sum(1))
            found = direction = momentum * direction + found / per_sample(scale)
        image = ball.project(x, ball.move(image, found, size))
        yield image


def gradient_of(total: Tensor, leaf: Tensor, *, again: bool = False) -> Tensor:
    """The gradient of a sum of losses; zero where it does not depend on the image, or is NaN.

    So an attack on a module without gradients goes on, gets nowhere, and fails its checks.
    What is infinite becomes so large that it decides the direction, and can still be squared.
    ``again`` keeps the graph for another gradient.
    """
    if not total.requires_grad:
        return torch.zeros_like(leaf)
    with timed(Stage.BACKWARD):
        (found,) = torch.autograd.grad(total, leaf, allow_unused=True, retain_graph=again)
    if found is None:
        return torch.zeros_like(leaf)
    most = torch.finfo(found.dtype).max ** 0.25
    return found.nan_to_num(nan=0.0).clamp(-most, most)


def length(delta: Tensor) -> Tensor:
    """The L2 norm of each sample."""
    out: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return out


def per_sample(values: Tensor) -> Tensor:
    """One value a sample, in a shape that broadcasts over its image."""
    return values[:, None, None, None]


def _positive(lengths: Tensor) -> Tensor:
    return lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
