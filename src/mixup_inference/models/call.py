"""Call the base classifier F: in eval mode, with its output checked, and its passes counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.utils.profiling import Stage, timed

#: Pixels (channels included) of 64 images of CIFAR's size. Small networks are fastest with as many,
#: and up to half as fast with 1,024 images.
_CACHE_PIXELS = 64 * 3 * 32 * 32

#: Numbers in a layer's output; networks with larger outputs are fastest with smaller batches.
_CACHE_NUMBERS = 16 * 256 * 32 * 32

_LARGEST: WeakKeyDictionary[nn.Module, dict[torch.Size, int]] = WeakKeyDictionary()


@contextmanager
def overridden(objects: Iterable[Any], name: str, value: object) -> Iterator[None]:
    """Set an attribute of several objects inside the context, and restore it afterwards."""
    before = [(one, getattr(one, name)) for one in objects]
    for one, _ in before:
        setattr(one, name, value)
    try:
        yield
    finally:
        for one, old in before:
            setattr(one, name, old)


def eval_mode(model: nn.Module) -> AbstractContextManager[None]:
    """Put ``model`` in eval mode inside the context, and restore the mode of every submodule."""
    return overridden([part for part in model.modules() if part.training], "training", value=False)


def check_model(model: nn.Module) -> nn.Module:
    """The base classifier must be a torch module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch nn.Module; saw {type(model).__name__}.")
    return model


def logits_of(model: nn.Module, x: Tensor, *, as_it_is: bool = False) -> Tensor:
    """Return F's logits for a batch, shape (batch, classes); refuse any other output.

    ``as_it_is``: if the model is in eval mode, leave the modes of its parts alone; dropout that is
    part of a defence is in training mode on purpose.
    """
    check_model(model)
    try:
        with (
            timed(Stage.FORWARD, images=len(x)),
            nullcontext() if as_it_is and not model.training else eval_mode(model),
        ):
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
    """Take the logits out of an output object, such as those of Hugging Face's classifiers."""
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


@dataclass
class Passes:
    """Numbers of images passed forward through a module, and of gradients passed backward."""

    forward: int = 0
    backward: int = 0


@contextmanager
def count_passes(module: nn.Module, passes: Passes | None = None) -> Iterator[Passes]:
    """Count the images that pass through ``module``, exactly; adds to ``passes`` if given."""
    passes = Passes() if passes is None else passes

    def count(_: nn.Module, args: tuple[Tensor, ...], out: Any) -> None:
        passes.forward += len(args[0])
        logits = unwrap(out)
        if isinstance(logits, Tensor) and logits.requires_grad:
            logits.register_hook(count_back)

    def count_back(gradient: Tensor) -> None:
        passes.backward += len(gradient)

    handle = module.register_forward_hook(count)
    try:
        yield passes
    finally:
        handle.remove()


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of a module's first floating-point parameter (float32 when it has none)."""
    types = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter (the CPU when it has none)."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """A key that changes when weights or statistics are modified, replaced, moved or converted."""
    tensors = [*module.parameters(), *module.buffers()]
    return tuple((id(t), t.data_ptr(), t._version, t.dtype, t.device) for t in tensors)


def batch_for(x: Tensor, model: nn.Module) -> int:
    """The fastest batch size for these images: on a CPU, what fits into its caches.

    It follows from the size of the layers' outputs, which is measured once, with one image.
    """
    if x.device.type != "cpu":
        return max(1, x.shape[0])
    most = max(8, _CACHE_PIXELS // max(1, x[0].numel()))
    if len(x) <= 16 or most <= 16:
        return most
    sizes = _LARGEST.setdefault(model, {})
    if x.shape[1:] not in sizes:
        sizes[x.shape[1:]] = _largest_output(model, x[:1])
    return max(16, min(most, _CACHE_NUMBERS // sizes[x.shape[1:]]))


def _largest_output(model: nn.Module, x: Tensor) -> int:
    """Numbers in the largest output of a convolution, for one image."""
    sizes = [1]
    handles = [
        part.register_forward_hook(lambda _, __, out: sizes.append(out.numel()))
        for part in model.modules()
        if isinstance(part, nn.Conv2d)
    ]
    try:
        if handles:
            with eval_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
                model.forward(x.detach())  # bypasses hooks, which would count it
    except Exception:  # if something is wrong, the real call reports it
        return 1
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)
