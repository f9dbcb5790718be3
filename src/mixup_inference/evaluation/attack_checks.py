"""Sanity checks of an attack, shown beside its result: if one fails, do not trust the number.

They test what holds for every attack that works (Carlini et al., 2019; Tramer et al., 2020): more
effort does not help the defender, an unbounded attack leaves nothing, an attack that knows less
does no better, and planted examples are found.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from mixup_inference.attacks import AttackResult, QueryModel, eot_pgd, freeze
from mixup_inference.attacks.options import OPTIONS
from mixup_inference.errors import InputError
from mixup_inference.evaluation.binarization_test import Check, binarization_test
from mixup_inference.metrics.robust_accuracy import RobustAccuracy, paired_difference
from mixup_inference.validation import check_int

__all__ = ["Check", "at_least_as_strong", "check_attack", "loss_rises"]

#: Names of the checks, by their ids.
NAMES = {
    "loss-rises": "the loss rises",
    "twice-steps": "twice the steps do not help the defender",
    "twice-draws": "twice the draws do not help the defender",
    "seed-known": "at least as strong on the frozen defence",
    "unbounded": "eps = 1 leaves nothing",
    "surrogate-gradient": "the gradient is the defence's own",
}
ALLOWED = 0.01  # of accuracy, with eps = 1


def loss_rises(trace: Tensor) -> Check:
    """Check that the loss ends higher than it starts, and does not fall over the thirds.

    >>> import torch
    >>> loss_rises(torch.tensor([0.5, 2.0, 3.0])).detail
    'the loss goes from 0.5 to 3 (mean of the first third 0.5, of the last 3).'
    """
    if len(trace) < 2:
        return _check("loss-rises", None, "the attack took no step.")
    third = max(1, len(trace) // 3)
    start, end = float(trace[0]), float(trace[-1])
    first, last = float(trace[:third].mean()), float(trace[-third:].mean())
    detail = (
        f"the loss goes from {start:.3g} to {end:.3g} "
        f"(mean of the first third {first:.3g}, of the last {last:.3g})."
    )
    return _check("loss-rises", end > start and last >= first, detail)


def at_least_as_strong(
    check_id: str, strong: Tensor, weak: Tensor, *, titles: tuple[str, str] = ("it", "the other")
) -> Check:
    """Fail if ``strong`` leaves a significantly higher accuracy than ``weak`` does.

    Both are fooled matrices of the same points; ``titles`` are their names in the sentence.
    """
    value, low, high = paired_difference(strong, weak)
    left = [RobustAccuracy(fooled).value for fooled in (strong, weak)]
    detail = (
        f"{titles[0]} leaves {left[0]:.1%}, {titles[1]} {left[1]:.1%}: "
        f"{_points(value)} points (95%: {_points(low)} to {_points(high)})."
    )
    return _check(check_id, low <= 0, detail, titles[1])


def _check(check_id: str, passed: bool | None, detail: str, other: str = "") -> Check:  # noqa: FBT001
    name = NAMES.get(check_id, f"at least as strong as {other}")
    return Check(check_id, name, passed, detail)


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
    """Run all checks of an attack on a defence, on a few points (some fifty).

    This costs about ten times as much as the attack itself on these points.

    Args:
        defense: a defence, or any classifier.
        x: clean images in [0, 1].
        y: the true labels.
        attack: called as ``attack(module, x, y, steps=, draws=, loss=, **options)``; if it has
            the settings ``step`` and ``schedule``, they are set to match eps = 1.
        steps: with which the attack is used.
        draws: with which the attack is used.
        loss: with which the attack is used.
        others: the fooled matrices, on the same points, of attacks that know less (transfer,
            Square), by title.
        frozen: the fooled matrix of the attack on the frozen defence, if there is one already.
        planted: on how many of the points the binarization test is run.
        **options: see ``AttackOptions``.
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
            why = "the module draws from a generator of its own."
            checks.append(_check("seed-known", None, why))
        else:
            fixed = run(freeze(defense)).fooled if frozen is None else frozen
            titles = "on the frozen defence it", "on the random one"
            checks.append(at_least_as_strong("seed-known", fixed, main.fooled, titles=titles))
    else:
        why = "the module has no randomness."
        checks += [_check("twice-draws", None, why), _check("seed-known", None, why)]
    known = inspect.signature(attack).parameters
    checks.append(_change_everything(partial(run, defense), x, settings, known))
    for title, fooled in (others or {}).items():
        titles = "it", title
        checks.append(at_least_as_strong("weaker-attack", main.fooled, fooled, titles=titles))
    if any(getattr(part, "surrogate_gradient", False) for part in defense.modules()):
        why = (
            "a part of the defence has no useful gradient and declares a surrogate (BPDA): an "
            "attack that follows it may miss what exists. Attack without gradients, too."
        )
        checks.append(_check("surrogate-gradient", None, why))
    few: dict[str, Any] = {
        name: value[:planted] if isinstance(value, Tensor) else value
        for name, value in settings.items()
    }
    return [*checks, binarization_test(defense, x[:planted], y[:planted], attack=attack, **few)]


def _effort(what: str, count: int, once: Tensor, twice: Tensor) -> Check:
    """Check that twice the effort does not help the defender; mention if it helps the attack."""
    titles = f"with {2 * count} {what} it", f"with {count}"
    check = at_least_as_strong(f"twice-{what}", twice, once, titles=titles)
    if paired_difference(twice, once)[2] >= 0:
        return check
    return replace(check, detail=f"{check.detail[:-1]}, so even more {what} may find more.")


def _change_everything(
    run: Callable[..., AttackResult], x: Tensor, settings: Mapping[str, Any], known: Container[str]
) -> Check:
    """Check that an attack that may change the whole image leaves nothing, given enough steps."""
    linf = settings.get("norm", OPTIONS["norm"]) == "linf"
    eps = 1.0 if linf else math.sqrt(x[0].numel())  # the diagonal of the image
    change = {"step": eps / 4, "schedule": "linear"}
    change = {name: value for name, value in change.items() if name in known}
    least = max(20, settings["steps"])
    for steps in (least, 4 * least):
        left = RobustAccuracy(run(**change, eps=eps, steps=steps).fooled).value
        if left <= ALLOWED:
            break
    words = "eps = 1" if linf else f"eps = {eps:.3g}, the diagonal of the image,"
    detail = f"with {words} and {steps} steps it leaves {left:.1%} (allowed: {ALLOWED:.0%})."
    return _check("unbounded", left <= ALLOWED, detail)


def _points(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # + 0.0: no "-0.0"
