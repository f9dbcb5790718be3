"""Training objectives: a batch in, weighted inputs with soft labels out.

The loop does one forward pass on these and minimises the weighted cross-entropy, whatever the
objective. One of your own is a function like those here, with ``@OBJECTIVES.register("name")``, or
at ``package.module:function``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks import pgd
from mixup_inference.draws import Beta, Draws, derive_seed, make_key
from mixup_inference.pool import mix
from mixup_inference.registry import Registry

if TYPE_CHECKING:
    from mixup_inference.training.recipe import Recipe


@dataclass(frozen=True)
class SharedBatch:
    """A batch that several processes share, as one of them sees it.

    Attributes:
        index: the positions of all rows in the data set.
        y: the labels of all rows.
        own: the rows of this process.
        images: the images of some rows, of this process or another.
        gather: collects the rows of all processes.
    """

    index: Tensor
    y: Tensor
    own: slice
    images: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Images in [0, 1], integer labels, positions in the data set, and the epoch.

    If several processes share the batch, these are the rows of one, and ``shared`` is all of it.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    epoch: int
    shared: SharedBatch | None = None

    @property
    def whole(self) -> SharedBatch:
        """All of the batch."""
        return self.shared or SharedBatch(
            self.index, self.y, slice(None), lambda rows: self.x[rows], lambda x: x
        )

    def with_images(self, x: Tensor) -> Batch:
        """Replace the images, in the rows of this process and in those of the others."""
        shared = self.shared
        if shared is not None:
            gather = shared.gather
            shared = replace(shared, images=lambda rows: gather(x)[rows])
        return replace(self, x=x, shared=shared)


@dataclass(frozen=True)
class Examples:
    """What the network is trained on: inputs, soft labels, and a weight for each row."""

    x: Tensor
    targets: Tensor
    weights: Tensor

    def loss(self, logits: Tensor) -> Tensor:
        """The weighted mean of the cross-entropies; the weights of a batch sum to one."""
        losses = functional.cross_entropy(logits, self.targets, reduction="none")
        return (self.weights * losses).sum()

    def accuracy(self, logits: Tensor) -> Tensor:
        """The weighted share of rows where the likeliest label is the heaviest one."""
        return (self.weights * (logits.argmax(1) == self.targets.argmax(1))).sum()


Objective = Callable[[nn.Module, Batch, "Recipe", int], Examples]


@dataclass(frozen=True)
class ObjectiveEntry:
    """A training objective, and what the rest of the package knows of it.

    Attributes:
        name: in recipes and specs.
        function: ``(model, batch, recipe, classes) -> Examples``; the model is the one to attack.
        adversarial: it attacks the model, with ``recipe.steps`` steps for each image.
        uses_mixup: it trains on mixed images and labels.
        title: for people; the name, if it has none.
        paper: the paper's settings where they are not the defaults of ``Recipe``.
    """

    name: str
    function: Objective
    adversarial: bool = False
    uses_mixup: bool = False
    title: str = ""
    paper: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)


OBJECTIVES: Registry[ObjectiveEntry] = Registry("objective", ObjectiveEntry)


@OBJECTIVES.register("erm", title="ERM")
def erm(_: nn.Module, batch: Batch, __: Recipe, classes: int) -> Examples:
    """Empirical risk minimisation: the images as they are."""
    targets = functional.one_hot(batch.y, classes).to(batch.x.dtype)
    weights = torch.full_like(batch.x[:, 0, 0, 0], 1 / len(batch.whole.index))
    return Examples(batch.x, targets, weights)


@OBJECTIVES.register("mixup", uses_mixup=True)
def mixup(_: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Mixup (Zhang et al., 2018; Section 2.2), with a ratio for each sample or for the batch."""
    return mix_batch(erm(_, batch, recipe, classes), batch, recipe, "clean")


@OBJECTIVES.register("at", adversarial=True, title="AT")
def at(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Adversarial training (Madry et al., 2018), clean and adversarial images 1:1 (Eq. 19)."""
    adversarial = erm(model, attacked(model, batch, recipe), recipe, classes)
    return join(adversarial, erm(model, batch, recipe, classes), recipe.adv_ratio)


@OBJECTIVES.register(
    "iat", adversarial=True, uses_mixup=True, title="interpolated AT", paper={"lr": 0.1}
)
def iat(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Interpolated AT (Lamb et al., 2019): both halves of AT, each mixed up on its own."""
    adversarial = attacked(model, batch, recipe)
    return join(
        mix_batch(erm(model, adversarial, recipe, classes), adversarial, recipe, "adversarial"),
        mixup(model, batch, recipe, classes),
        recipe.adv_ratio,
    )


def mix_batch(examples: Examples, batch: Batch, recipe: Recipe, half: str) -> Examples:
    """Mix each row with a partner from the batch: x~ = lam x + (1 - lam) x', likewise y~.

    Ratio and partner follow from (seed, epoch, position in the data set); a batch with one ratio
    takes that of its first row. The partner may be a row of another process.
    """
    whole = batch.whole
    draws = Draws.once(make_key(recipe.seed, "mixup", half, batch.epoch), whole.index)
    ratios = Beta(recipe.alpha, recipe.alpha).quantile(draws.uniform(0))[:, 0]
    if recipe.ratio == "batch":
        ratios = ratios[:1].expand_as(ratios)
    lam = ratios[whole.own]
    if recipe.lam is not None:
        lam = torch.full_like(lam, recipe.lam)
    # Two independent orders, matched up: a random permutation of the batch.
    first, second = draws.bits(1)[:, 0].argsort(), draws.bits(2)[:, 0].argsort()
    partner = torch.empty_like(first).scatter_(0, first, second)[whole.own]
    x, targets = examples.x, examples.targets
    theirs = functional.one_hot(whole.y[partner], targets.shape[1]).to(targets.dtype)
    label_lam = lam.to(x.dtype)[:, None]
    image_lam = label_lam[:, :, None, None]
    return Examples(
        mix(x, whole.images(partner), image_lam),
        mix(targets, theirs, label_lam),
        examples.weights,
    )


def attacked(model: nn.Module, batch: Batch, recipe: Recipe) -> Batch:
    """The batch's adversarial counterpart: untargeted PGD on the model in eval mode."""
    return batch.with_images(
        pgd(
            model,
            batch.x,
            batch.y,
            eps=recipe.eps,
            step=recipe.step,
            steps=recipe.steps,
            labels=recipe.attack_labels,
            seed=derive_seed(recipe.seed, "inner attack", batch.epoch),
            index=batch.index,
            batch_size=len(batch.y),
        )
    )


def join(adversarial: Examples, clean: Examples, ratio: float) -> Examples:
    """Join both halves for one forward pass; a half of weight zero is left out."""
    halves = [
        Examples(half.x, half.targets, half.weights * weight)
        for half, weight in ((adversarial, ratio), (clean, 1 - ratio))
        if weight > 0
    ]
    return Examples(
        torch.cat([half.x for half in halves]),
        torch.cat([half.targets for half in halves]),
        torch.cat([half.weights for half in halves]),
    )
