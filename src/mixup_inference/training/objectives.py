"""Training objectives: a batch in, weighted inputs with soft labels out.

The loop does one forward pass on these and minimises the weighted cross-entropy, or another loss
that a subclass of ``Examples`` defines. One of your own is a function like those here, with
``@OBJECTIVES.register("name")``, or at ``package.module:function``.
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
from mixup_inference.models.call import unwrap
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
    ``carried`` is what ``Examples.carry`` returned in the step before.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    epoch: int
    shared: SharedBatch | None = None
    carried: Tensor | None = None

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

    def logits(self, model: nn.Module) -> Tensor:
        """The logits of the rows, by one forward pass of the model."""
        out: Tensor = unwrap(model(self.x))
        return out

    def loss(self, logits: Tensor) -> Tensor:
        """The weighted mean of the cross-entropies; the weights of a batch sum to one."""
        losses = functional.cross_entropy(logits, self.targets, reduction="none")
        return (self.weights * losses).sum()

    def accuracy(self, logits: Tensor) -> Tensor:
        """The weighted share of rows where the likeliest label is the heaviest one."""
        return (self.weights * (logits.argmax(1) == self.targets.argmax(1))).sum()

    def carry(self) -> Tensor | None:
        """What the next batch is handed as ``carried``; called after the backward pass."""
        return None


Objective = Callable[[nn.Module, Batch, "Recipe", int], Examples]


@dataclass(frozen=True)
class ObjectiveEntry:
    """A training objective, and what the rest of the package knows of it.

    Attributes:
        name: in recipes and specs.
        function: ``(model, batch, recipe, classes) -> Examples``; the model is the one to attack.
        adversarial: it trains on adversarial examples.
        uses_mixup: it trains on weighted means of images, or of their hidden states, with labels
            to match.
        without_mixup: if it uses mixup, the objective that differs from it just in that; "erm" by
            default, or "at" if it is adversarial.
        title: for people; the name, if it has none.
        paper: the paper's settings where they are not the defaults of ``Recipe``.
        rows: how many examples it makes of an image; two by default if it is adversarial.
        attack_passes: forward and backward passes of its inner attack, for each image; if it is
            adversarial, those of PGD by default.
        replays: it uses each batch for ``recipe.replays`` steps in a row.
        watched: it may lose its robustness all at once, so that is measured after each epoch.
    """

    name: str
    function: Objective
    adversarial: bool = False
    uses_mixup: bool = False
    title: str = ""
    paper: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    attack_passes: Callable[[Recipe], tuple[int, int]] | None = None
    replays: bool = False
    watched: bool = False
    without_mixup: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "rows", self.rows or 1 + self.adversarial)
        if self.uses_mixup and not self.without_mixup:
            object.__setattr__(self, "without_mixup", "at" if self.adversarial else "erm")

    def passes(self, recipe: Recipe) -> tuple[int, int]:
        """Forward and backward passes for each image, those of the inner attack included."""
        forward, backward = self.inner_passes(recipe)
        return forward + self.rows, backward + self.rows

    def inner_passes(self, recipe: Recipe) -> tuple[int, int]:
        """Forward and backward passes of the inner attack for each image."""
        if self.attack_passes is not None:
            return self.attack_passes(recipe)
        if not self.adversarial:
            return 0, 0
        return recipe.steps + (recipe.attack_labels == "predicted"), recipe.steps


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


@dataclass(frozen=True)
class Pairs:
    """The mixing ratio of each row of a process, and its partner among all rows of the batch."""

    lam: Tensor
    partner: Tensor


def draw_pairs(batch: Batch, recipe: Recipe, half: str) -> Pairs:
    """Draw a ratio and a partner from the batch for each row.

    They follow from (seed, epoch, position in the data set); a batch with one ratio takes that of
    its first row. The partner may be a row of another process.
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
    return Pairs(lam, partner)


def mix_batch(examples: Examples, batch: Batch, recipe: Recipe, half: str) -> Examples:
    """Mix each row with a partner from the batch: x~ = lam x + (1 - lam) x', likewise y~."""
    pairs = draw_pairs(batch, recipe, half)
    x = examples.x
    lam = pairs.lam.to(x.dtype)[:, None, None, None]
    mixed = mix(x, batch.whole.images(pairs.partner), lam)
    return Examples(mixed, mix_labels(examples.targets, batch, pairs), examples.weights)


def mix_labels(targets: Tensor, batch: Batch, pairs: Pairs) -> Tensor:
    """Mix the labels of each row with those of its partner: y~ = lam y + (1 - lam) y'."""
    theirs = functional.one_hot(batch.whole.y[pairs.partner], targets.shape[1])
    return mix(targets, theirs.to(targets.dtype), pairs.lam.to(targets.dtype)[:, None])


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
