"""How the base classifier F is called: in eval mode, checked, returning logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run ``model`` in eval mode and put every submodule's mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check_model(model: nn.Module) -> nn.Module:
    """The base classifier must be a torch module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch nn.Module; saw {type(model).__name__}.")
    return model


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """F's logits for a batch, shape (batch, classes); clear words when it returns another thing."""
    check_model(model)
    try:
        with eval_mode(model):
            out = model(x)
    except RuntimeError as error:
        if x.dtype == dtype_of(model):
            raise
        raise InputError(
            f"the model's weights are {dtype_of(model)}, the images {x.dtype}; convert one of "
            f"them ({error})."
        ) from error
    out = unwrap(out)
    if not isinstance(out, Tensor):
        raise InputError(
            f"the model must return one tensor of logits; it returned {type(out).__name__}. "
            "Wrap it in a module that returns the logits only."
        )
    if out.ndim != 2 or out.shape[0] != x.shape[0]:
        raise InputError(
            "the model must return logits of shape (batch, classes); "
            f"for a batch of {x.shape[0]} it returned {tuple(out.shape)}."
        )
    return out


def unwrap(out: Any) -> Any:
    """The logits of an output that carries them, as those of Hugging Face's classifiers do."""
    return getattr(out, "logits", out)


def refuse_probabilities(logits: Tensor) -> None:
    """Raise when the 'logits' are non-negative rows that sum to one: softmax was already applied.

    Log-probabilities pass, as they should: softmax(log p) = p.
    """
    out = logits.detach()
    if out.shape[1] > 1 and bool((out >= 0).all()) and bool(((out.sum(1) - 1).abs() < 1e-4).all()):
        raise InputError(
            "the model returns probabilities (each row is non-negative and sums to 1); "
            "it must return logits. Remove its softmax, or return the log of its output."
        )


@contextmanager
def count_images(module: nn.Module) -> Iterator[list[int]]:
    """Count the images that pass through ``module``; the list's only entry is the count."""
    count = [0]

    def add(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        count[0] += args[0].shape[0]

    handle = module.register_forward_pre_hook(add)
    try:
        yield count
    finally:
        handle.remove()


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of a module's first floating-point parameter (float32 when it has none)."""
    types = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter (the CPU when it has none)."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))
