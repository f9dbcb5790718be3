"""Attacks that never query the defence: crafted on surrogate models, and sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.options import Count, Natural, NotNegative
from mixup_inference.attacks.pgd import pgd
from mixup_inference.attacks.query import accelerate, base_of, seeded
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError
from mixup_inference.models.call import Passes, count_passes


def prepare_surrogates(call: Any) -> list[nn.Module]:
    """Return the models that the examples are crafted on: by default the undefended one."""
    models = list(call.surrogates) or [base_of(call.defense)]
    for model in models:
        if not isinstance(model, nn.Module):
            raise InputError(f"surrogates must be torch modules; saw {type(model).__name__}.")
    images, precision = call.steps * len(call.x), call.options.precision
    return [accelerate(model, call.x, images=images, precision=precision) for model in models]


@attack(
    "transfer",
    queries=lambda call: max(1, len(call.surrogates)),
    prepare=prepare_surrogates,
    fold=False,
)
def transfer(
    batch: Batch,
    *,
    surrogates: Sequence[nn.Module] = (),  # noqa: ARG001 (they come prepared)
    steps: Natural = 50,
    step: NotNegative | None = None,
    random_start: bool = True,
    momentum: NotNegative = 0.0,
    draws: Count = 10,
) -> BatchResult:
    """PGD on surrogate models, whose examples are sent to the defence.

    Without surrogates it is the oblivious attack of the paper: PGD on the undefended model. Of
    several, for each point the example with the highest loss under the defence is kept, which is
    more than an attacker without access could do, so it bounds what transfer can reach.

    Args:
        batch: the points under attack.
        surrogates: classifiers that take the same images and have the same classes.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        random_start: begin at a random point of the ball.
        momentum: share of the previous direction that is kept.
        draws: of the defence, by which the loss is estimated.
        **options: see ``AttackOptions``.
    """
    best: BatchResult | None = None
    before = batch.loss(batch.x, "ce", draws, "first")
    seed = derive_seed(batch.seed, "transfer", int(batch.index[0]))
    base, threat_model = base_of(batch.model.module), batch.threat_model
    for model in batch.prepared:
        counted = any(part is base for part in model.modules())  # already, with the defence's F
        passes = Passes() if counted else batch.model.passes
        with count_passes(base_of(model), passes), seeded(seed, model, batch.x):  # it may draw
            examples = pgd(
                model,
                batch.x,
                batch.y,
                eps=threat_model.eps,
                norm=threat_model.norm,
                step=threat_model.eps / 4 if step is None else step,
                steps=steps,
                momentum=momentum,
                targets=batch.target,
                random_start=random_start,
                seed=batch.seed,
                index=batch.index,
                batch_size=len(batch.x),
            )
        after = batch.loss(examples, "ce", draws, "last")
        best = BatchResult(examples, after, torch.stack([before, after])).better(best)
        batch.tick()
    assert best is not None
    return best
