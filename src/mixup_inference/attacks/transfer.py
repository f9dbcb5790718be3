"""Attacks that never look through the defence: crafted on other models, sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from mixup_inference.attacks.base import Attacked, Batch, Common, Found, run, step_size
from mixup_inference.attacks.eot import better
from mixup_inference.attacks.pgd import pgd
from mixup_inference.attacks.query import accelerate, base_of, seeded
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError
from mixup_inference.models.call import Passes, count_passes
from mixup_inference.validation import check_images, check_int


def transfer(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    surrogates: Sequence[nn.Module] = (),
    steps: int = 50,
    step: float | None = None,
    random_start: bool = True,
    draws: int = 10,
    **options: Unpack[Common],
) -> Attacked:
    """PGD on surrogate models, whose examples are sent to the defence.

    Without surrogates it is the oblivious attack of the paper: PGD on the undefended model. Of
    several, for each point the example with the highest loss under the defence is kept, which is
    more than an attacker without access could do, so it bounds what transfer can reach.

    Args:
        defense: what the examples are sent to.
        x: clean images in [0, 1].
        y: the true labels.
        surrogates: classifiers that take the same images and have the same classes.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        random_start: begin at a random point of the ball.
        draws: of the defence, by which the loss is estimated.
        **options: see ``Common``.
    """
    base = base_of(defense)
    check_int(steps, what="steps", least=0)
    check_images(x)
    given = list(surrogates) or [base]
    for model in given:
        if not isinstance(model, nn.Module):
            raise InputError(f"surrogates must be torch modules; saw {type(model).__name__}.")
    precision = options.get("precision", "32-true")
    models = [accelerate(model, x, images=steps * len(x), precision=precision) for model in given]
    size = step_size(step, options)

    def attack(batch: Batch) -> Found:
        before = batch.loss(batch.x, "ce", draws, "first")
        best: Found | None = None
        for model in models:
            inside = any(part is base for part in model.modules())
            counted = Passes() if inside else batch.victim.passes
            seed = derive_seed(batch.seed, "transfer", int(batch.index[0]))
            with (
                count_passes(base_of(model), counted),  # the base is counted anyway
                seeded(seed, model, batch.x),  # a model of the user's may draw
            ):
                examples = pgd(
                    model,
                    batch.x,
                    batch.y,
                    eps=batch.ball.eps,
                    norm=batch.ball.norm,
                    step=size,
                    steps=steps,
                    targets=batch.target,
                    random_start=random_start,
                    seed=batch.seed,
                    index=batch.index,
                    batch_size=len(batch.x),
                )
            after = batch.loss(examples, "ce", draws, "last")
            found = Found(examples, after, torch.stack([before, after]))
            best = found if best is None else better(best, found)
            batch.tick()
        assert best is not None
        return best

    ticks = len(models)
    return run("transfer", defense, x, y, attack, options, draws=draws, ticks=ticks, fold=False)
