"""Projected gradient descent (Eq. 18): one loop for both norms, both modes, all step counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks.query import Precision, accelerate
from mixup_inference.attacks.threat_model import Ball, Norm, climb, gradient_of
from mixup_inference.defenses import Defense, within_memory
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.call import batch_for, logits_of
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import (
    check_images,
    check_index,
    check_int,
    check_labels,
    check_number,
)

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
    precision: Precision
    ranks: Ranks
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


@timed(Stage.ATTACKING)
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
    precision: Precision = "32-true",
    ranks: Ranks = ALONE,
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
        batch_size: how many points are attacked at a time, at most: on a CPU no more of a plain
            network's than what its caches hold, which changes nothing but the time.
        precision: of the attack's own passes; see ``accelerate``.
        ranks: the processes that share the points, each of which calls this with all of them.
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
    ball, sizes = Ball(norm, eps), at[-1] * [check_number(step, what="step", least=0)]
    model = accelerate(model, x, images=at[-1] * len(x), precision=precision)
    start_key = make_key(check_int(seed, what="seed", least=0), "pgd start")
    check_int(batch_size, what="batch_size", least=1)
    if not isinstance(model, Defense):
        batch_size = min(batch_size, batch_for(x, model))
    parts = torch.arange(len(x), device=x.device).split(batch_size)
    with progress.task("PGD", total=len(parts) * at[-1]) as task:

        def attack(rows: Tensor) -> list[Tensor]:
            goal = _goal(
                model,
                x[rows],
                y[rows],
                targets=None if targets is None else targets[rows],
                targeted=targeted,
                labels=labels,
                key=make_key(seed, "pgd target"),
                index=index[rows],
            )
            start = ball.start(x[rows], index[rows], start_key) if random_start else x[rows]
            gradient = _gradient(model, goal, lambda: task.advance(ranks.size))
            path = enumerate(climb(x[rows], start, ball, gradient, sizes))
            return [image for count, image in path if count in at]

        found = ranks.share(parts, attack)
    joined = (torch.cat(images).to(x.device) for images in zip(*found, strict=True))
    examples = dict(zip(at, joined, strict=True))
    return examples[steps] if snapshots is None else examples


def _gradient(
    model: nn.Module, goal: Callable[[Tensor], Tensor], tick: Callable[[], None]
) -> Callable[[Tensor, int], Tensor]:
    def gradient(image: Tensor, _: int) -> Tensor:
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            found = within_memory(model, image, lambda: gradient_of(goal(leaf), leaf))
        tick()
        return found

    return gradient


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
