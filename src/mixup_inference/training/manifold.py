"""Manifold mixup (Verma et al., 2019): hidden states are mixed, not only images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.pool import mix
from mixup_inference.training.objectives import (
    OBJECTIVES,
    Batch,
    Examples,
    Pairs,
    draw_pairs,
    erm,
    mix_batch,
    mix_labels,
)

if TYPE_CHECKING:
    from mixup_inference.training.recipe import Recipe

#: How many layers are eligible beside the input, as in the published code.
LAYERS = 2


@dataclass(frozen=True)
class HiddenExamples(Examples):
    """Rows whose hidden states are mixed on their way through the model.

    Attributes:
        layer: the part of the model whose output is mixed.
        mix_states: what is done to that output.
    """

    layer: nn.Module
    mix_states: Callable[[Any], Tensor]

    def logits(self, model: nn.Module) -> Tensor:
        """One forward pass, with the mixing in it."""
        calls = []

        def hook(_: nn.Module, __: Any, states: Any) -> Tensor:
            calls.append(states)
            return self.mix_states(states)

        handle = self.layer.register_forward_hook(hook)
        try:
            out = super().logits(model)
        finally:
            handle.remove()
        if len(calls) != 1:
            raise InputError(
                f"manifold mixup needs layers that run once in a forward pass; a "
                f"{type(self.layer).__name__} of this network ran {len(calls)} times."
            )
        return out


@OBJECTIVES.register("manifold-mixup", uses_mixup=True, title="manifold mixup")
def manifold_mixup(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Manifold mixup: h~ = lam h + (1 - lam) h' at one layer, likewise y~.

    The layer is drawn for each batch from the input and the first two blocks of the network.
    """
    layers = hidden_layers(model)
    first = batch.whole.index[:1]
    draws = Draws.once(make_key(recipe.seed, "manifold layer", batch.epoch), first)
    chosen = int(draws.integers(0, 1 + len(layers)))
    plain = erm(model, batch, recipe, classes)
    if chosen == 0:
        return mix_batch(plain, batch, recipe, "manifold")
    pairs = draw_pairs(batch, recipe, "manifold")
    targets = mix_labels(plain.targets, batch, pairs)
    return HiddenExamples(
        plain.x, targets, plain.weights, layers[chosen - 1], lambda h: mix_states(h, batch, pairs)
    )


def hidden_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose outputs may be mixed: the first two blocks of the network.

    Its blocks are its parts that have parts of their own; if there is just one, those of that one.
    A network without blocks has its layers with weights instead. The last is never among them:
    what follows it is hardly more than a linear layer.
    """
    if not (found := _blocks(model)[:LAYERS]):
        raise InputError(
            "manifold mixup found no hidden layer to mix in this network: it needs at least two "
            "blocks, or two layers with weights, that are modules of it."
        )
    return found


def _blocks(model: nn.Module) -> list[nn.Module]:
    parts = [part for part in model.children() if any(True for _ in part.parameters())]
    blocks = [part for part in parts if any(True for _ in part.children())]
    if len(blocks) == 1 and (inside := _blocks(blocks[0])):
        return inside
    return (blocks if len(blocks) > 1 else parts)[:-1]


def mix_states(states: Any, batch: Batch, pairs: Pairs) -> Tensor:
    """Mix the hidden states of each row with those of its partner, also of another process."""
    if not isinstance(states, Tensor) or len(states) != len(batch.y):
        raise InputError(
            "manifold mixup needs hidden layers that return one tensor with a row for each image."
        )
    lam = pairs.lam.to(torch.promote_types(states.dtype, torch.float32))
    lam = lam.view(-1, *[1] * (states.ndim - 1))
    return mix(states, batch.whole.gather(states)[pairs.partner], lam).to(states.dtype)
