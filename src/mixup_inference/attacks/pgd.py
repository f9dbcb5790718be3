"""Projected gradient descent (Eq. 18): one loop for both norms, both modes, all step counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.checks import (
    check_images,
    check_index,
    check_int,
    check_labels,
    check_number,
)
from mixup_inference.classifier import logits_of
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.progress import SILENT, Progress

Norm = Literal["linf", "l2"]
AttackLabels = Literal["true", "predicted"]


class PGDOptions(TypedDict, total=False):
    """The keyword arguments of ``pgd``, for type checkers."""

    eps: float
    step: float
    steps: int
    norm: Norm
    targeted: bool
    targets: Tensor | None
    labels: AttackLabels
    random_start: bool
    seed: int
    index: Tensor | None
    batch_size: int
    progress: Progress


@overload
def pgd(model: nn.Module, x: Tensor, y: Tensor, **options: Unpack[PGDOptions]) -> Tensor: ...


@overload
def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    snapshots: Iterable[int],
    **options: Unpack[PGDOptions],
) -> dict[int, Tensor]: ...


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = 8 / 255,
    step: float = 2 / 255,
    steps: int = 10,
    norm: Norm = "linf",
    targeted: bool = False,
    targets: Tensor | None = None,
    labels: AttackLabels = "true",
    random_start: bool = True,
    seed: int = 0,
    index: Tensor | None = None,
    snapshots: Iterable[int] | None = None,
    batch_size: int = 256,
    progress: Progress = SILENT,
) -> Tensor | dict[int, Tensor]:
    """Adversarial examples by projected gradient descent on the cross-entropy.

    Returns the last iterate of every point, whether or not it fools the model: that is what an
    oblivious attacker would send. Always within eps of x and within [0, 1].

    Args:
        model: a classifier, or a defence (each step then sees new draws, unless it is frozen).
        x: clean images in [0, 1].
        y: the true labels.
        eps: radius of the ball.
        step: size of one step.
        steps: how many.
        norm: "linf" (sign steps) or "l2" (normalised steps).
        targeted: go towards another class, drawn uniformly from those other than the true one,
            once per point; otherwise away from the true class.
        targets: the classes to go towards, instead of drawn ones; implies ``targeted``.
        labels: "predicted" goes away from the model's own prediction on x, as the published code
            of the paper does; points that are misclassified already may then become right.
        random_start: begin at a uniformly random point of the ball.
        seed: of the random start and the targets, which belong to a point, not to a batch. (The
            draws of a defence under attack are its own: freeze them for a repeatable attack.)
        index: the points' positions in their data set; 0, 1, 2, ... by default.
        snapshots: step counts; returns ``{count: examples}`` from one trajectory.
        batch_size: how many points are attacked at a time.
        progress: where to report.
    """
    check_images(x)
    x = x.detach()
    index = (
        torch.arange(x.shape[0], device=x.device)
        if index is None
        else check_index(index, count=x.shape[0], device=x.device)
    )
    y = check_labels(y, count=x.shape[0]).to(x.device)
    if targets is not None:
        targets = check_labels(targets, count=x.shape[0], what="targets").to(x.device)
    if isinstance(snapshots, int):
        snapshots = (snapshots,)
    at = [steps] if snapshots is None else sorted(set(snapshots))
    check_int(steps, what="steps", least=0)
    if not at or at[0] < 0 or at[-1] > steps:
        raise InputError(f"snapshots must lie between 0 and steps = {steps}; saw {at}.")
    ball = _Ball(
        norm,
        check_number(eps, what="eps", least=0),
        check_number(step, what="step", least=0),
        make_key(check_int(seed, what="seed", least=0), "pgd start") if random_start else None,
    )
    parts = range(0, x.shape[0], check_int(batch_size, what="batch_size", least=1))
    out: dict[int, list[Tensor]] = {count: [] for count in at}
    with progress.task("PGD", total=len(parts) * at[-1]) as task:
        for a in parts:
            part = slice(a, a + batch_size)
            goal = _goal(
                model,
                x[part],
                y[part],
                targets=None if targets is None else targets[part],
                targeted=targeted,
                labels=labels,
                key=make_key(seed, "pgd target"),
                index=index[part],
            )
            for count, image in _trajectory(goal, x[part], index[part], ball, at, task.advance):
                out[count].append(image)
    examples = {count: torch.cat(images) for count, images in out.items()}
    return examples[steps] if snapshots is None else examples


def _trajectory(
    goal: Callable[[Tensor], Tensor],
    x: Tensor,
    index: Tensor,
    ball: _Ball,
    at: list[int],
    tick: Callable[[], None],
) -> Iterable[tuple[int, Tensor]]:
    """The one loop of this file: start, then gradient, step, project; yields the snapshots."""
    image = ball.start(x, index)
    for count in range(at[-1] + 1):
        if count in at:
            yield count, image
        if count == at[-1]:
            return
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(goal(leaf), leaf)
        image = ball.project(x, ball.move(image, gradient))
        tick()


@dataclass(frozen=True)
class _Ball:
    """The geometry of a norm: where to start, how to step, how to come back."""

    norm: Norm
    eps: float
    step: float
    start_key: int | None

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise unknown_name("norm", self.norm, ["linf", "l2"])

    def start(self, x: Tensor, index: Tensor) -> Tensor:
        """A uniformly random point of the ball around each x, or x itself."""
        if self.start_key is None:
            return x
        draws = Draws.once(self.start_key, index)
        shape = tuple(x.shape[1:])
        if self.norm == "linf":
            delta = self.eps * (2 * draws.uniform_block(0, shape)[:, 0].to(x.dtype) - 1)
        else:
            direction = draws.normal(0, shape)[:, 0].to(x.dtype)
            radius = draws.uniform(1)[:, 0].to(x.dtype) ** (1 / x[0].numel())
            delta = self.eps * _per_sample(radius) * direction / _per_sample(_length(direction))
        return self.project(x, x + delta)

    def move(self, image: Tensor, gradient: Tensor) -> Tensor:
        """One step uphill."""
        if self.norm == "linf":
            return image + self.step * gradient.sign()
        return image + self.step * gradient / _per_sample(_positive(_length(gradient)))

    def project(self, x: Tensor, image: Tensor) -> Tensor:
        """The nearest point that is in the ball, then in [0, 1] (which cannot leave the ball)."""
        delta = image - x
        if self.norm == "linf":
            delta = delta.clamp(-self.eps, self.eps)
        else:
            delta = delta * _per_sample((self.eps / _positive(_length(delta))).clamp(max=1))
        return (x + delta).clamp(0, 1)


def _length(delta: Tensor) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return out


def _positive(lengths: Tensor) -> Tensor:
    return lengths.clamp(min=torch.finfo(lengths.dtype).tiny)


def _per_sample(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _goal(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    targets: Tensor | None,
    targeted: bool,
    labels: AttackLabels,
    key: int,
    index: Tensor,
) -> Callable[[Tensor], Tensor]:
    """What the attacker climbs, summed over points so that each has its own gradient."""
    if labels not in ("true", "predicted"):
        raise unknown_name("labels", labels, ["true", "predicted"])
    sign = 1.0 if targets is None and not targeted else -1.0
    if targets is not None:
        y = targets
    elif targeted or labels == "predicted":
        with torch.no_grad():
            logits = logits_of(model, x)
        check_labels(y, count=x.shape[0], classes=logits.shape[1])
        y = _draw_targets(y, logits.shape[1], key, index) if targeted else logits.argmax(1)
    highest = int(y.max())

    def goal(image: Tensor) -> Tensor:
        logits = logits_of(model, image)
        if highest >= logits.shape[1]:
            raise InputError(
                f"label {highest} is out of range: the model has {logits.shape[1]} classes."
            )
        return sign * functional.cross_entropy(logits, y, reduction="sum")

    return goal


def random_targets(
    y: Tensor, classes: int, *, seed: int = 0, index: Tensor | None = None
) -> Tensor:
    """For each point a class drawn uniformly from those other than y; ``pgd`` draws the same."""
    if index is None:
        index = torch.arange(y.shape[0], device=y.device)
    return _draw_targets(y, classes, make_key(seed, "pgd target"), index)


def _draw_targets(y: Tensor, classes: int, key: int, index: Tensor) -> Tensor:
    if classes < 2:
        raise InputError("a targeted attack needs at least two classes.")
    target = Draws.once(key, index).integers(0, classes - 1)[:, 0]
    return target + (target >= y).long()
