"""Checks that an attack works, to be shown beside its result: a red one says do not trust it.

They ask what is true of every attack that does its work (Carlini et al., 2019; Tramer et al.,
2020): more effort does not help the defender, an attack that may change everything leaves
nothing, an attack that knows less does no better, and what was planted is found.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from mixup_inference.attacks import AttackResult, QueryModel, eot_pgd, freeze
from mixup_inference.errors import InputError
from mixup_inference.evaluation.binarization_test import Check, planted_test
from mixup_inference.metrics.robust_accuracy import RobustAccuracy, paired_difference
from mixup_inference.validation import check_int

__all__ = ["Check", "at_least_as_strong", "check_attack", "loss_rises"]

RISES = "the loss rises"
TWICE = "twice the {} do not help the defender"
FROZEN = "at least as strong on the frozen defence"
ALL = "eps = 1 leaves nothing"
ALLOWED = 0.01  # of accuracy, with eps = 1


def loss_rises(trace: Tensor) -> Check:
    """The loss ends higher than it starts, and is not lower in the last third than in the first.

    >>> import torch
    >>> loss_rises(torch.tensor([0.5, 2.0, 3.0])).detail
    'the loss goes from 0.5 to 3 (mean of the first third 0.5, of the last 3).'
    """
    if len(trace) < 2:
        return Check(RISES, None, "the attack took no step.")
    third = max(1, len(trace) // 3)
    start, end = float(trace[0]), float(trace[-1])
    first, last = float(trace[:third].mean()), float(trace[-third:].mean())
    detail = (
        f"the loss goes from {start:.3g} to {end:.3g} "
        f"(mean of the first third {first:.3g}, of the last {last:.3g})."
    )
    return Check(RISES, end > start and last >= first, detail)


def at_least_as_strong(
    name: str,
    strong: Tensor,
    weak: Tensor,
    *,
    titles: tuple[str, str] = ("it", "the other"),
) -> Check:
    """Fails if ``strong`` leaves a higher accuracy than ``weak`` does, beyond noise.

    Both are fooled matrices, of the same points; ``titles`` are what the sentence calls them.
    """
    value, low, high = paired_difference(strong, weak)
    left = [RobustAccuracy(fooled).value for fooled in (strong, weak)]
    detail = (
        f"{titles[0]} leaves {left[0]:.1%}, {titles[1]} {left[1]:.1%}: "
        f"{_points(value)} points (95%: {_points(low)} to {_points(high)})."
    )
    return Check(name, low <= 0, detail)


def check_attack(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    attack: Callable[..., AttackResult] = eot_pgd,
    steps: int,
    draws: int,
    loss: str = "ce",
    others: Mapping[str, Tensor] | None = None,
    frozen: Tensor | None = None,
    planted: int = 20,
    **options: Any,
) -> list[Check]:
    """All checks of an attack on a defence, on a few points (some fifty).

    It costs about ten times what the attack itself costs on these points.

    Args:
        defense: a defence, or any classifier.
        x: clean images in [0, 1].
        y: the true labels.
        attack: called as ``attack(module, x, y, steps=, draws=, loss=, **options)``; if it has
            the options ``step`` and ``schedule`` too, they are set to match eps = 1.
        steps: that the attack is used with.
        draws: that the attack is used with.
        loss: that the attack is used with.
        others: the fooled matrices, on the same points, of attacks that know less (transfer,
            Square), by title.
        frozen: the fooled matrix of the attack on the frozen defence, if there is one already.
        planted: how many of the points are given a planted example.
        **options: see ``Common``.
    """
    check_int(steps, what="steps", least=1)
    for title, fooled in (others or {}).items():
        if len(fooled) != len(x):
            raise InputError(f"{title} was run on {len(fooled)} points; the check is on {len(x)}.")
    settings: dict[str, Any] = {"steps": steps, "draws": draws, "loss": loss, **options}

    def run(module: nn.Module, **changes: Any) -> AttackResult:
        return attack(module, x, y, **(settings | changes))

    main = run(defense)
    checks = [
        loss_rises(main.trace),
        _effort("steps", steps, main.fooled, run(defense, steps=2 * steps).fooled),
    ]
    if QueryModel(defense, x).is_random:
        checks.append(_effort("draws", draws, main.fooled, run(defense, draws=2 * draws).fooled))
        if frozen is None and QueryModel(freeze(defense), x).is_random:
            checks.append(Check(FROZEN, None, "the module draws from a generator of its own."))
        else:
            fixed = run(freeze(defense)).fooled if frozen is None else frozen
            titles = "on the frozen defence it", "on the random one"
            checks.append(at_least_as_strong(FROZEN, fixed, main.fooled, titles=titles))
    else:
        names = TWICE.format("draws"), FROZEN
        checks += [Check(name, None, "the module has no randomness.") for name in names]
    checks.append(_change_everything(defense, x, y, attack, settings))
    for title, fooled in (others or {}).items():
        name = f"at least as strong as {title}"
        checks.append(at_least_as_strong(name, main.fooled, fooled, titles=("it", title)))
    few: dict[str, Any] = {
        name: value[:planted] if isinstance(value, Tensor) else value
        for name, value in settings.items()
    }
    return [*checks, planted_test(defense, x[:planted], y[:planted], attack=attack, **few)]


def _effort(what: str, count: int, once: Tensor, twice: Tensor) -> Check:
    """Whether twice the effort does not help the defender; and a hint if it helps the attack."""
    titles = f"with {2 * count} {what} it", f"with {count}"
    check = at_least_as_strong(TWICE.format(what), twice, once, titles=titles)
    if paired_difference(twice, once)[2] >= 0:
        return check
    return replace(check, detail=f"{check.detail[:-1]}, so even more {what} may find more.")


def _change_everything(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Callable[..., AttackResult],
    settings: Mapping[str, Any],
) -> Check:
    """Whether an attack that may change the whole image leaves nothing, given steps enough."""
    linf = settings.get("norm", "linf") == "linf"
    eps = 1.0 if linf else math.sqrt(x[0].numel())  # the diagonal of the image
    known = inspect.signature(attack).parameters
    change = {"step": eps / 4, "schedule": "linear"}
    change = {name: value for name, value in change.items() if name in known}
    left, steps = 1.0, max(20, settings["steps"])
    for count in (steps, 4 * steps):
        found = attack(defense, x, y, **{**settings, **change, "eps": eps, "steps": count})
        left, steps = RobustAccuracy(found.fooled).value, count
        if left <= ALLOWED:
            break
    words = "eps = 1" if linf else f"eps = {eps:.3g}, the diagonal of the image,"
    detail = f"with {words} and {steps} steps it leaves {left:.1%} (allowed: {ALLOWED:.0%})."
    return Check(ALL, left <= ALLOWED, detail)


def _points(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # + 0.0: no "-0.0"
