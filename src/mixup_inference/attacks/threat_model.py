"""The Lp threat model (random start, step, projection, targets) and the gradient-ascent loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_number

Norm = Literal["linf", "l2"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class ThreatModel:
    """All images in [0, 1] within ``eps`` of x, in one of two norms."""

    norm: Norm
    eps: float

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise unknown_name("norm", self.norm, ["linf", "l2"])
        check_number(self.eps, what="eps", least=0)

    def start(self, x: Tensor, index: Tensor, key: int) -> Tensor:
        """Draw a uniformly random point of the ball around each x."""
        draws = Draws.once(key, index)
        shape = tuple(x.shape[1:])
        if self.norm == "linf":
            delta = self.eps * (2 * draws.uniform_block(0, shape)[:, 0].to(x.dtype) - 1)
        else:
            direction = draws.normal(0, shape)[:, 0].to(x.dtype)
            radius = draws.uniform(1)[:, 0].to(x.dtype) ** (1 / x[0].numel())
            delta = self.eps * per_sample(radius) * direction / per_sample(length(direction))
        return self.project(x, x + delta)

    def step(self, image: Tensor, gradient: Tensor, size: Tensor | float) -> Tensor:
        """Take one step uphill: along the sign (linf) or the unit vector (l2) of the gradient.

        ``size`` is a number, or one for each sample.
        """
        far = per_sample(size) if isinstance(size, Tensor) else size
        if self.norm == "linf":
            return image + far * gradient.sign()
        return image + far * gradient / per_sample(_positive(length(gradient)))

    def project(self, x: Tensor, image: Tensor) -> Tensor:
        """Project onto the ball around x, then onto [0, 1], which cannot leave the ball."""
        delta = image - x
        if self.norm == "linf":
            delta = delta.clamp(-self.eps, self.eps)
        else:
            delta = delta * per_sample((self.eps / _positive(length(delta))).clamp(max=1))
        return (x + delta).clamp(0, 1)


def gradient_ascent(
    x: Tensor,
    start: Tensor,
    threat_model: ThreatModel,
    gradient: Callable[[Tensor, int], Tensor],
    sizes: list[float],
    *,
    momentum: float = 0.0,
) -> Iterator[Tensor]:
    """Projected gradient ascent (Eq. 18), the loop of all gradient attacks; yields every iterate.

    Args:
        x: the clean images.
        start: the first iterate, which is yielded too.
        threat_model: the set that the iterates stay in.
        gradient: returns the gradient of the objective at an iterate, given the step's number.
        sizes: of the steps.
        momentum: share of the previous direction that is kept; each gradient is then scaled to
            length one in L1 before it is added, as in Dong et al. (2018).
    """
    image, direction = start, torch.zeros_like(x)
    yield image
    for number, size in enumerate(sizes):
        found = gradient(image, number)
        if momentum:
            scale = _positive(found.abs().flatten(1).sum(1))
            found = direction = momentum * direction + found / per_sample(scale)
        image = threat_model.project(x, threat_model.step(image, found, size))
        yield image


def step_sizes(step: float, steps: int, schedule: str = "constant") -> list[float]:
    """Return the sizes of all steps: constant, or falling to zero linearly or along a cosine.

    >>> step_sizes(1.0, 4, "linear")
    [1.0, 0.75, 0.5, 0.25]
    """
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda share: 1 - share,
        "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
    }
    if not isinstance(schedule, str) or schedule not in shapes:
        raise InputError(f"schedule must be one of {', '.join(shapes)}; saw {schedule!r}.")
    return [step * shapes[schedule](number / steps) for number in range(steps)]


def gradient_of(total: Tensor, leaf: Tensor, *, retain_graph: bool = False) -> Tensor:
    """Return the gradient of a sum of losses; zero where it is NaN or does not exist.

    So an attack on a module without gradients runs to its end, gets nowhere, and fails its checks.
    Infinite values are clamped: they decide the direction, and can still be squared.
    """
    if not total.requires_grad:
        return torch.zeros_like(leaf)
    with timed(Stage.BACKWARD):
        (found,) = torch.autograd.grad(total, leaf, allow_unused=True, retain_graph=retain_graph)
    if found is None:
        return torch.zeros_like(leaf)
    most = torch.finfo(found.dtype).max ** 0.25
    return found.nan_to_num(nan=0.0).clamp(-most, most)


def random_targets(
    y: Tensor, classes: int, *, seed: int = 0, index: Tensor | None = None
) -> Tensor:
    """Draw for each point a class other than y, uniformly: the targets of targeted attacks."""
    if classes < 2:
        raise InputError("a targeted attack needs at least two classes.")
    if index is None:
        index = torch.arange(y.shape[0], device=y.device)
    target = Draws.once(make_key(seed, "pgd target"), index).integers(0, classes - 1)[:, 0]
    return target + (target >= y).long()


def length(delta: Tensor) -> Tensor:
    """Return the L2 norm of each sample."""
    out: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return out


def per_sample(values: Tensor) -> Tensor:
    """Reshape one value per sample to broadcast over its image."""
    return values[:, None, None, None]


def _positive(lengths: Tensor) -> Tensor:
    return lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
