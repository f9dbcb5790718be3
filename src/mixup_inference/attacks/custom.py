"""Attacks of a user's own: any function that returns adversarial images, run as one of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks.base import AttackResult, Batch, BatchResult, attack
from mixup_inference.attacks.options import OPTIONS
from mixup_inference.attacks.query import lent
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError

#: Draws by which the loss of an example is estimated.
DRAWS = 10


def run_custom(
    name: str,
    function: Callable[..., Tensor | AttackResult],
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Mapping[str, Any],
    **options: Any,
) -> AttackResult:
    """Run ``function(defense, x, y, *, eps, ..., **settings)``, which returns adversarial images.

    It is called with one batch at a time, and with those of eps, norm, seed, index and targets
    that it names. Global generators are seeded for each batch and restored afterwards; for results
    that do not depend on the batch size, draw from ``mixup_inference.draws`` with seed and index.
    Its images are projected onto the threat model, with a warning if they had left it; passes are
    counted; and success is evaluated on fresh draws, as for all attacks.
    """
    names = inspect.signature(function).parameters

    @attack(name, queries=lambda _: 1, fold=False)
    def run(batch: Batch, *, draws: int) -> BatchResult:
        if batch.target is not None and "targets" not in names:
            raise InputError(f"{name} cannot be targeted: it has no keyword argument targets.")
        ours = {
            "eps": batch.threat_model.eps,
            "norm": batch.threat_model.norm,
            "seed": batch.seed,
            "index": batch.index,
            "targets": batch.target,
        }
        keywords = {key: value for key, value in ours.items() if key in names} | dict(settings)
        passes, before = batch.model.passes, replace(batch.model.passes)
        module = batch.model.module
        with lent(module, derive_seed(batch.seed, "custom", name, int(batch.index[0])), batch.x):
            out = function(module, batch.x, batch.y, **keywords)
        if isinstance(out, AttackResult):  # its own count is exact, also around a folded copy of F
            passes.forward = before.forward + out.forward
            passes.backward = before.backward + out.backward
            out = out.examples
        if not isinstance(out, Tensor):
            raise InputError(
                f"{name} must return a tensor of images or an AttackResult; saw "
                f"{type(out).__name__}."
            )
        examples = batch.accept(name, out.detach().to(batch.x), bounded="eps" in names)
        batch.tick()
        first = batch.loss(batch.x, "ce", draws, "first")
        last = batch.loss(examples, "ce", draws, "last")
        return BatchResult(examples, last, torch.stack([first, last]))

    result: AttackResult = run(defense, x, y, draws=settings.get("draws", DRAWS), **options)
    return result


def is_custom(function: Callable[..., Any]) -> bool:
    """Whether a function is a user's own, and not an attack that takes all our options."""
    return not OPTIONS.keys() <= inspect.signature(function).parameters.keys()
