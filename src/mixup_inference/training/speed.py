"""Make training faster without changing its result, up to rounding."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mixup_inference.attacks.query import accelerate, seeded
from mixup_inference.models.call import eval_mode, unwrap
from mixup_inference.models.folding import Folded, fold, is_watched


def attack_target(
    model: nn.Module, x: Tensor, *, images: int, folded: bool | None = None
) -> nn.Module:
    """What the inner attack queries: a folded copy if that pays for so many images, or the model.

    The copy is out of date after a step of the optimizer, until ``refreshed``.

    Args:
        model: what is trained.
        x: a few images, on which a copy is compared with the model.
        images: how many pass in an epoch.
        folded: the decision at the beginning of the epoch, if it was made already.
    """
    if folded is not None:
        return fold(model) if folded else model
    with eval_mode(model):
        return accelerate(model, x, images=images)


def refreshed(target: nn.Module, model: nn.Module) -> nn.Module:
    """The target with the model's present weights."""
    if isinstance(target, Folded):
        target.refresh(model)
    return target


@contextmanager
def channels_last(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Keep the convolutions' weights in the memory format channels-last inside the context.

    On a CPU, convolutions and what follows them are faster then. A model that does not work in that
    format, or that has hooks, is left alone.

    Args:
        model: in place; its weights are as they were laid out afterwards.
        x: a few images, for a trial.
    """
    weights = _plain_weights(model)
    if x.device.type != "cpu" or not weights or is_watched(model) or not _works(model, x):
        yield
        return
    _lay_out(weights, torch.channels_last)
    try:
        yield
    finally:
        _lay_out(weights, torch.contiguous_format)


def _plain_weights(model: nn.Module) -> list[Tensor]:
    """The weights of convolutions that are not channels-last yet.

    Strides say so, not ``is_contiguous``: with one channel both formats are the same numbers in the
    same order, and yet the strides decide in which format a convolution answers.
    """
    weights = (part.weight for part in model.modules() if isinstance(part, nn.Conv2d))
    return [w for w in weights if w.stride() != _laid_out(w, torch.channels_last).stride()]


def _lay_out(weights: list[Tensor], memory_format: torch.memory_format) -> None:
    for weight in weights:
        weight.data = _laid_out(weight.data, memory_format).copy_(weight.data)


def _laid_out(weight: Tensor, memory_format: torch.memory_format) -> Tensor:
    return torch.empty_like(weight, memory_format=memory_format)


def _works(model: nn.Module, x: Tensor) -> bool:
    """Whether a copy in that format can be trained: a ``view`` of what it computes may not go."""
    try:
        twin = copy.deepcopy(model).train()
        _lay_out(_plain_weights(twin), torch.channels_last)
        with torch.enable_grad(), seeded(0, twin, x):
            unwrap(twin(x)).sum().backward()
    except Exception:
        return False
    return True
