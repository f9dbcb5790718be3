"""What all attacks share: their options, the batches they work on, the result, and the judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from mixup_inference.attacks.losses import get_loss
from mixup_inference.attacks.pgd import random_targets
from mixup_inference.attacks.query import Precision, Victim, accelerate
from mixup_inference.attacks.success import judge
from mixup_inference.attacks.threat_model import Ball, Norm, gradient_of, length
from mixup_inference.defenses import within_memory
from mixup_inference.draws import make_key
from mixup_inference.errors import InputError, unknown_name
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


class Common(TypedDict, total=False):
    """The options that every attack takes, all by keyword.

    eps: radius of the ball (8/255).
    norm: "linf" or "l2".
    targeted: go towards another class, drawn uniformly, once per point.
    targets: the classes to go towards instead of drawn ones; implies ``targeted``.
    repeats: how often each example is judged, each time with fresh draws of the whole defence.
    seed: of starts, targets and the attack's draws, which belong to a point, not to a batch.
    index: the points' positions in their data set; 0, 1, 2, ... by default.
    batch_size: how many images go through F at once: with K draws, so many / K points.
    precision: of the attack's own passes: "32-true", or "bf16-mixed" to compute in bfloat16 where
        that is nearly the same (see ``accelerate``). The judge computes as the defence does.
    ranks: the processes that share the points, each of which calls the attack with all of them.
    progress: where to report.
    """

    eps: float
    norm: Norm
    targeted: bool
    targets: Tensor | None
    repeats: int
    seed: int
    index: Tensor | None
    batch_size: int
    precision: Precision
    ranks: Ranks
    progress: Progress


@dataclass(frozen=True)
class Attacked:
    """What an attack leaves: always the last word of the attacker, whether or not it fools.

    examples: within eps of x and within [0, 1].
    loss: of each example, as the attack estimates it over its own draws.
    fooled: (points, repeats), whether each fresh answer of the defence is wrong.
    linf, l2: the size of each perturbation.
    forward, backward: images through F and back again, judging not counted. Where a chunk of a
        defence is too small for the draws, what is computed again in the backward pass counts too.
    trace: the mean loss over all points at each iterate, the first being the start.
    """

    examples: Tensor
    loss: Tensor
    fooled: Tensor
    linf: Tensor
    l2: Tensor
    forward: int
    backward: int
    trace: Tensor

    @property
    def success(self) -> Tensor:
        """For each point the share of fresh answers that are wrong."""
        return self.fooled.double().mean(1)


class Found(NamedTuple):
    """What an attack finds for one batch; the trace has shape (iterates, points)."""

    examples: Tensor
    loss: Tensor
    trace: Tensor


@dataclass(frozen=True)
class Batch:
    """Some points under attack."""

    victim: Victim
    x: Tensor
    y: Tensor
    target: Tensor | None
    index: Tensor
    ball: Ball
    seed: int
    tick: Callable[[], None]

    def start(self, restart: int = 0) -> Tensor:
        """A random point of the ball; of the first restart the one that ``pgd`` starts from."""
        name = ("pgd start",) if restart == 0 else ("pgd start", restart)
        return self.ball.start(self.x, self.index, make_key(self.seed, *name))

    def loss(self, image: Tensor, loss: str, draws: int, *stream: str | int) -> Tensor:
        """The loss of each point over the draws of a stream."""
        log_p = self.victim.log_probs(image, self.index, draws, *stream)
        check_labels(self.y, count=len(self.y), classes=log_p.shape[2])
        return get_loss(loss)(log_p, self.y, self.target)

    def climb_loss(
        self, image: Tensor, loss: str, draws: int, *stream: str | int
    ) -> tuple[Tensor, Tensor]:
        """The gradient of the loss of each point, and the loss."""
        leaf = image.detach().requires_grad_()

        def compute() -> tuple[Tensor, Tensor]:
            values = self.loss(leaf, loss, draws, *stream)
            return gradient_of(values.sum(), leaf), values.detach()

        with torch.enable_grad():
            found = within_memory(self.victim.module, image, compute)
        self.tick()
        return found


@timed(Stage.ATTACKING)
def run(
    name: str,
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Callable[[Batch], Found],
    options: Common,
    *,
    draws: int,
    ticks: int,
    copies: int = 1,
    judged: nn.Module | None = None,
    fold: bool = True,
) -> Attacked:
    """Attack all points batch by batch, count, and judge the examples.

    Args:
        name: what the progress shows.
        defense: what is attacked.
        x: clean images in [0, 1].
        y: the true labels.
        attack: attacks one batch.
        options: what the caller asked for, see ``Common``; other names are refused.
        draws: how many draws the attack looks at in one go, which bounds the batch.
        ticks: how many gradients or queries the attack makes of each batch.
        copies: how often the attack repeats each point, which bounds the batch too.
        judged: what the examples are to fool, if that is not ``defense`` itself.
        fold: the attack sees the defence through its batches only, so that these may have it
            around a folded copy of F, which is faster.
    """
    for option in options.keys() - Common.__optional_keys__:
        raise TypeError(str(unknown_name("option", option, Common.__optional_keys__)))
    check_images(x)
    x = x.detach()
    y = check_labels(y, count=len(x)).to(x.device)
    index = options.get("index")
    index = (
        torch.arange(len(x), device=x.device)
        if index is None
        else check_index(index, count=len(x), device=x.device)
    )
    seed = check_int(options.get("seed", 0), what="seed", least=0)
    batch_size = check_int(options.get("batch_size", 256), what="batch_size", least=1)
    ball = Ball(options.get("norm", "linf"), options.get("eps", 8 / 255))
    precision = options.get("precision", "32-true")
    attacked = defense
    if fold:
        attacked = accelerate(defense, x, images=ticks * len(x), precision=precision)
    victim = Victim(attacked, x, seed=seed)
    target = _targets(victim, x, y, index, seed, options)
    one, many = victim.images(1), victim.images(check_int(draws, what="draws", least=1))
    images = max(many, copies * one)
    rows = max(1, batch_size // images)
    parts = torch.arange(len(x), device=x.device).split(rows)
    ranks = options.get("ranks", ALONE)
    with (
        options.get("progress", SILENT).task(name, total=len(parts) * ticks) as task,
        victim.counting(),
        torch.no_grad(),
    ):

        def tick() -> None:
            task.advance(ranks.size)

        def attack_part(part: Tensor) -> Found:
            return attack(
                Batch(
                    victim,
                    x[part],
                    y[part],
                    None if target is None else target[part],
                    index[part],
                    ball,
                    seed,
                    tick,
                )
            )

        found = ranks.share(parts, attack_part)
    examples = torch.cat([one.examples for one in found]).detach().to(x.device)
    delta = examples - x
    return Attacked(
        examples=examples,
        loss=torch.cat([one.loss for one in found]).detach().to(x.device),
        fooled=judge(
            defense if judged is None else judged,
            examples,
            y,
            repeats=options.get("repeats", 5),
            index=index,
            batch_size=batch_size,
            ranks=ranks,
        ),
        linf=delta.abs().flatten(1).amax(1),
        l2=length(delta),
        forward=ranks.total(victim.passes.forward),
        backward=ranks.total(victim.passes.backward),
        trace=torch.cat([one.trace for one in found], dim=1).double().mean(1).detach().cpu(),
    )


def _targets(
    victim: Victim, x: Tensor, y: Tensor, index: Tensor, seed: int, options: Common
) -> Tensor | None:
    """The classes to go towards, if the attack is targeted; the same ones as ``pgd``'s."""
    targets = options.get("targets")
    if targets is not None:
        return check_labels(targets, count=len(x), what="targets").to(x.device)
    if not options.get("targeted", False):
        return None
    with torch.no_grad():
        classes = victim.log_probs(x[:1], index[:1], 1, "classes").shape[2]
    return random_targets(check_labels(y, count=len(x), classes=classes), classes, seed=seed,
                          index=index)  # fmt: skip


def step_size(step: float | None, options: Common) -> float:
    """The size of a step; a quarter of eps where it is not given."""
    if step is None:
        return check_number(options.get("eps", 8 / 255), what="eps", least=0) / 4
    return check_number(step, what="step", least=0)


def step_sizes(step: float, steps: int, schedule: str) -> list[float]:
    """The sizes of all steps: constant, or falling to zero linearly or along a cosine.

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
