"""Trainings that mix in another way than mixup does, and label smoothing, which does not mix.

Partners come from the batch, and ratios and partners follow from the seed, as in ``mix_batch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mixup_inference.draws import Draws, make_key, scale_bits
from mixup_inference.pool import mix
from mixup_inference.training.objectives import (
    OBJECTIVES,
    Batch,
    Examples,
    Pairs,
    draw_pairs,
    erm,
    mix_labels,
)

if TYPE_CHECKING:
    from mixup_inference.training.recipe import Recipe


@OBJECTIVES.register("label-smoothing", title="label smoothing")
def label_smoothing(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Label smoothing (Szegedy et al., 2016): y~ = (1 - s) y + s / classes, unmixed images."""
    plain = erm(_, batch, recipe, classes)
    return Examples(
        plain.x,
        mix(plain.targets, torch.full_like(plain.targets, 1 / classes), 1 - recipe.smoothing),
        plain.weights,
    )


@OBJECTIVES.register("cutmix", title="CutMix")
def cutmix(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """CutMix (Yun et al., 2019): a box of the image is replaced by the same box of the partner's.

    The box covers 1 - lam of the image, lam ~ Beta(alpha, alpha), has its centre anywhere, and is
    clipped to the image; labels are mixed by the area that is left of it. Every batch is mixed
    (with probability 1/2 in the paper's experiments on CIFAR).
    """
    plain, whole = erm(_, batch, recipe, classes), batch.whole
    pairs = draw_pairs(batch, recipe, "cutmix")
    draws = Draws.once(make_key(recipe.seed, "cutmix box", batch.epoch), whole.index)
    inside = [
        _within(side, draws.integers(slot, side)[:, 0], pairs, batch, recipe)
        for slot, side in enumerate(plain.x.shape[2:])
    ]
    box = inside[0][:, :, None] & inside[1][:, None, :]
    x = torch.where(box[:, None], whole.images(pairs.partner), plain.x)
    lam = 1 - box.double().mean((1, 2))
    targets = mix_labels(plain.targets, batch, Pairs(lam, pairs.partner))
    return Examples(x, targets, plain.weights)


def _within(side: int, centres: Tensor, pairs: Pairs, batch: Batch, recipe: Recipe) -> Tensor:
    """Whether each pixel along a side lies in the box, as the published code rounds it."""
    if recipe.ratio == "batch":
        centres = centres[:1].expand_as(centres)
    centre = centres[batch.whole.own][:, None]
    half = (side * (1 - pairs.lam).sqrt()).long()[:, None] // 2
    pixel = torch.arange(side, device=centre.device)
    return (pixel >= centre - half) & (pixel < centre + half)


@OBJECTIVES.register("sample-pairing", title="SamplePairing")
def sample_pairing(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """SamplePairing (Inoue, 2018): the mean of two images with the label of the first.

    Off in the first tenth of the epochs and in the last fifth, and in between for two epochs after
    each eight. That is the paper's schedule for CIFAR, from epoch 100 to 800 of 1000. Its partners
    are from the whole training set, those here from the batch.
    """
    plain = erm(_, batch, recipe, classes)
    if not pairing_is_on(batch.epoch, recipe.epochs):
        return plain
    partner = draw_pairs(batch, recipe, "sample pairing").partner
    return Examples(mix(plain.x, batch.whole.images(partner), 0.5), plain.targets, plain.weights)


def pairing_is_on(epoch: int, epochs: int) -> bool:
    """Whether SamplePairing is on in an epoch, counted from 0.

    >>> [pairing_is_on(epoch, 1000) for epoch in (99, 100, 107, 108, 110, 799, 800)]
    [False, True, True, False, True, False, False]
    """
    first = epochs // 10
    return first <= epoch < epochs - epochs // 5 and (epoch - first) % 10 < 8


@OBJECTIVES.register("between-class", uses_mixup=True, title="between-class learning")
def between_class(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Between-class learning for images, BC+ (Tokozume et al., 2018); r ~ U(0, 1).

    p = 1 / (1 + sigma1 / sigma2 (1 - r) / r), and the label is r y1 + (1 - r) y2 of

        x~ = (p (x1 - mu1) + (1 - p) (x2 - mu2)) / sqrt(p^2 + (1 - p)^2) + p mu1 + (1 - p) mu2

    with mean mu and deviation sigma over all pixels of an image. The last two terms are not in the
    paper, whose network sees images without their mean in tests too; networks here see them with
    it. The square root raises the contrast, so pixels may leave [0, 1]. Partners are of another
    class, as in the paper; if a batch has none, the image stays as it is.
    """
    plain, whole = erm(_, batch, recipe, classes), batch.whole
    draws = Draws.once(make_key(recipe.seed, "between-class", batch.epoch), whole.index[whole.own])
    others = batch.y[:, None] != whole.y
    count = others.sum(1)
    number = scale_bits(draws.bits(1)[:, 0], count) + 1
    partner = (others & (others.cumsum(1) == number[:, None])).long().argmax(1)
    r = draws.uniform(0)[:, 0].clamp(min=2.0**-53)
    pairs = Pairs(torch.where(count > 0, r, 1.0), partner)
    r = pairs.lam.to(plain.x.dtype)[:, None, None, None]
    x1, x2 = plain.x, whole.images(partner)
    mu1, mu2 = (x.mean((1, 2, 3), keepdim=True) for x in (x1, x2))
    sigma1, sigma2 = (
        x.std((1, 2, 3), correction=0, keepdim=True).clamp(min=1e-6) for x in (x1, x2)
    )
    p = 1 / (1 + sigma1 / sigma2 * (1 - r) / r)
    mixed = mix(x1 - mu1, x2 - mu2, p) / (p**2 + (1 - p) ** 2).sqrt() + mix(mu1, mu2, p)
    return Examples(mixed, mix_labels(plain.targets, batch, pairs), plain.weights)
