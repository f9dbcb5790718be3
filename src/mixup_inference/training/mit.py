"""Mixup inference in training (Wang et al., 2023): the loss is that of the unmixed images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.draws import Beta, Draws, make_key
from mixup_inference.pool import mix
from mixup_inference.training.objectives import (
    OBJECTIVES,
    Batch,
    Examples,
    draw_pairs,
    erm,
    join,
)

if TYPE_CHECKING:
    from mixup_inference.training.recipe import Recipe

#: How often the two ratios of a pair are drawn at most; then those that differ most are taken.
_TRIES = 64


@dataclass(frozen=True)
class DecoupledExamples(Examples):
    """Two mixtures of each pair, whose logits are solved for those of the two images.

    Attributes:
        first, second: the ratio of each pair in its two mixtures.
    """

    first: Tensor
    second: Tensor

    def logits(self, model: nn.Module) -> Tensor:
        """The logits that the two images of each pair would have if the model were linear."""
        one, two = super().logits(model).chunk(2)
        exact = torch.promote_types(one.dtype, torch.float32)
        l1, l2 = (lam.to(exact)[:, None] for lam in (self.first, self.second))
        return torch.cat(((1 - l2) * one - (1 - l1) * two, l1 * two - l2 * one)) / torch.cat(
            (l1 - l2, l1 - l2)
        )


@OBJECTIVES.register("mit", uses_mixup=True, title="mixup inference in training", rows=2)
def mit(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """MIT-L, of "On the pitfall of mixup for uncertainty calibration": mixed inputs, hard labels.

    Of each pair (a, b) two mixtures l a + (1 - l) b are classified, with l1 > 1/2 > l2. The logits
    of a and b are solved from the two as if the model were linear, and the loss is the mean of
    their cross-entropies:

        z_a = ((1 - l2) z_1 - (1 - l1) z_2) / (l1 - l2),    z_b = (l1 z_2 - l2 z_1) / (l1 - l2)

    Both ratios are from Beta(alpha, alpha), folded to their side of 1/2, and drawn again while they
    differ by less than ``recipe.margin``.
    """
    plain, whole = erm(_, batch, recipe, classes), batch.whole
    partner = draw_pairs(batch, recipe, "mit").partner
    l1, l2 = (lam[whole.own] for lam in _two_ratios(batch, recipe))
    theirs = functional.one_hot(whole.y[partner], classes).to(plain.targets.dtype)
    images = whole.images(partner)
    mixed = (mix(plain.x, images, lam.to(plain.x.dtype)[:, None, None, None]) for lam in (l1, l2))
    first, second = (
        Examples(x, targets, plain.weights)
        for x, targets in zip(mixed, (plain.targets, theirs), strict=True)
    )
    both = join(first, second, 0.5)
    return DecoupledExamples(both.x, both.targets, both.weights, l1, l2)


def _two_ratios(batch: Batch, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Draw l1 and l2 for each row of the whole batch."""
    index = batch.whole.index
    draws = Draws(
        make_key(recipe.seed, "mit ratios", batch.epoch),
        index,
        torch.arange(_TRIES, device=index.device),
    )
    beta = Beta(recipe.alpha, recipe.alpha)
    one, two = (beta.quantile(draws.uniform(slot)) for slot in (0, 1))
    one, two = torch.maximum(one, 1 - one), torch.minimum(two, 1 - two)
    wide = one - two >= recipe.margin
    # The first pair that is wide enough has the highest score; without one, the widest pair.
    order = torch.arange(_TRIES, 0, -1, device=index.device)
    best = torch.where(wide, 1.0 + order, one - two).argmax(1, keepdim=True)
    if recipe.ratio == "batch":
        best, one, two = (x[:1].expand_as(x) for x in (best, one, two))
    return one.gather(1, best)[:, 0], two.gather(1, best)[:, 0]
