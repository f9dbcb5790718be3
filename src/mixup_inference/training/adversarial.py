"""Adversarial trainings beside AT: TRADES, and two that cost little more than plain training.

As in all objectives here, inner attacks query the model in eval mode, and all rows of a step share
one forward pass, so batch norm takes its statistics over the clean and the adversarial ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks.threat_model import ThreatModel, gradient_ascent, gradient_of
from mixup_inference.draws import Draws, make_key
from mixup_inference.models.call import logits_of
from mixup_inference.training.objectives import (
    OBJECTIVES,
    Batch,
    Examples,
    attacked,
    erm,
    join,
)

if TYPE_CHECKING:
    from mixup_inference.training.recipe import Recipe


@dataclass(frozen=True)
class TradesExamples(Examples):
    """Adversarial rows, then as many clean ones, with the loss of TRADES."""

    beta: float

    def loss(self, logits: Tensor) -> Tensor:
        """CE(f(x), y) + beta KL(f(x) || f(x')), with a gradient through both predictions."""
        adversarial, clean = logits.chunk(2)
        losses = functional.cross_entropy(
            clean, self.targets[len(clean) :], reduction="none"
        ) + self.beta * divergence(clean.log_softmax(1), adversarial.log_softmax(1))
        return (2 * self.weights[len(clean) :] * losses).sum()


@OBJECTIVES.register(
    "trades",
    adversarial=True,
    title="TRADES",
    attack_passes=lambda recipe: (recipe.steps + 1, recipe.steps),
)
def trades(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """TRADES (Zhang et al., 2019): CE(f(x), y) + beta KL(f(x) || f(x')).

    x' maximises the divergence: PGD from x + 0.001 N(0, 1), as in the published code.
    """
    x = batch.x
    noise = Draws.once(make_key(recipe.seed, "trades start", batch.epoch), batch.index)
    start = x + 0.001 * noise.normal(0, tuple(x.shape[1:]))[:, 0].to(x.dtype)
    with torch.no_grad():
        clean = logits_of(model, x).log_softmax(1)

    def gradient(image: Tensor, _: int) -> Tensor:
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            total = divergence(clean, logits_of(model, leaf).log_softmax(1)).sum()
            return gradient_of(total, leaf)

    sizes = recipe.steps * [recipe.step]
    *_, found = gradient_ascent(x, start, ThreatModel("linf", recipe.eps), gradient, sizes)
    halves = (
        erm(model, replace(batch, x=found.detach().clamp(0, 1)), recipe, classes),
        erm(model, batch, recipe, classes),
    )
    both = join(*halves, 0.5)
    return TradesExamples(both.x, both.targets, both.weights, recipe.beta)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of each row."""
    return (log_p.exp() * (log_p - log_q)).sum(1)


@OBJECTIVES.register(
    "fast-at",
    adversarial=True,
    title="fast AT",
    rows=1,
    attack_passes=lambda recipe: (1 + (recipe.attack_labels == "predicted"), 1),
    watched=True,
)
def fast_at(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Fast AT (Wong et al., 2020): adversarial images only, by FGSM from a random start.

    delta ~ U(-eps, eps), then delta = clip(delta + 1.25 eps sign(gradient), -eps, eps). ``step``
    and ``steps`` of the recipe have no effect. Catastrophic overfitting is looked for after each
    epoch.
    """
    one_step = replace(recipe, step=1.25 * recipe.eps, steps=1)
    return erm(model, attacked(model, batch, one_step), recipe, classes)


@dataclass(frozen=True)
class FreeExamples(Examples):
    """Perturbed rows, whose perturbation goes one step uphill after the backward pass.

    Attributes:
        delta: the perturbation of the rows of this process, a leaf of the graph.
        batch: what it perturbs.
        eps: its greatest size.
    """

    delta: Tensor
    batch: Batch
    eps: float

    def carry(self) -> Tensor:
        """The next delta of all rows: clip(delta + eps sign(gradient), -eps, eps)."""
        assert self.delta.grad is not None
        # In float16 a gradient may be NaN, which must not be carried on.
        moved = self.delta.detach() + self.eps * self.delta.grad.nan_to_num(nan=0.0).sign()
        rows = self.batch.whole.gather(moved.clamp(-self.eps, self.eps))
        older = self.batch.carried
        return rows if older is None else torch.cat((rows, older[len(rows) :]))


@OBJECTIVES.register(
    "free-at",
    adversarial=True,
    title="free AT",
    rows=1,
    attack_passes=lambda _: (0, 0),
    replays=True,
    watched=True,
)
def free_at(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Free AT (Shafahi et al., 2019): each batch is used ``recipe.replays`` times in a row.

    The backward pass that trains the weights also moves the perturbation of each row (Algorithm 1),
    which the same row of the next batch starts from; the first one starts from zero. So a step
    costs what a plain one costs. ``step`` and ``steps`` of the recipe have no effect.
    """
    whole, shape = batch.whole, batch.x.shape[1:]
    rows = batch.x.new_zeros(len(whole.index), *shape)
    if batch.carried is not None:
        kept = batch.carried[: len(rows)].to(rows)
        rows[: len(kept)] = kept
    with torch.enable_grad():
        delta = rows[whole.own].clone().requires_grad_()
        perturbed = (batch.x + delta).clamp(0, 1)
    plain = erm(model, batch, recipe, classes)
    return FreeExamples(perturbed, plain.targets, plain.weights, delta, batch, recipe.eps)
