"""A copy of a classifier for inference and attacks: the same function, fewer operations.

Batch norms in eval mode are affine, so they fold into the convolution before them; convolutions on
a CPU prefer the memory format channels-last; and weights that need no gradient cost none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from mixup_inference.classifier import batch_for, eval_mode, unwrap
from mixup_inference.timing import Stage, timed

_FUSE: dict[type[nn.Module], Callable[..., nn.Module]] = {
    nn.Conv1d: fuse_conv_bn_eval,
    nn.Conv2d: fuse_conv_bn_eval,
    nn.Conv3d: fuse_conv_bn_eval,
    nn.Linear: fuse_linear_bn_eval,
}
#: Fewer images than this are through before a copy is made.
WORTHWHILE = 500
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ChannelsLast(nn.Module):
    """Hands its images on in the memory format channels-last, as many at once as are best."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """What the model returns."""
        x = x.contiguous(memory_format=torch.channels_last)
        if len(x) <= (most := batch_for(x)):
            return self._logits(x)
        return torch.cat([self._logits(part) for part in x.split(most)])

    def _logits(self, x: Tensor) -> Tensor:
        out: Tensor = unwrap(self.model(x))
        return out


def fold(model: nn.Module) -> nn.Module:
    """A copy in eval mode with its batch norms folded, channels-last, without weight gradients.

    Later changes of the model do not reach it. Where the network cannot be traced (its steps
    depend on values), batch norms stay what they are.
    """
    return ChannelsLast(_fold_traced(bare(model))).eval()


def bare(model: nn.Module) -> nn.Module:
    """A copy in eval mode, without weight gradients and without the hooks on it."""
    twin = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    twin._forward_hooks.clear()
    return twin


@timed(Stage.COPYING)
def faster(model: nn.Module, x: Tensor, *, images: int) -> nn.Module:
    """``fold(model)`` if it pays for so many images and is the same function; else the model.

    A model with hooks is left alone: somebody watches it.

    Args:
        model: a classifier without randomness.
        x: some images, on which the two are compared.
        images: how many are going to pass.
    """
    convolves = any(isinstance(part, nn.Conv2d) for part in model.modules())
    if images < WORTHWHILE or not convolves or is_watched(model) or model.training:
        return model
    folded = fold(model)
    return folded if is_same(model, folded, x[:8]) else model


def is_watched(model: nn.Module) -> bool:
    """Whether hooks look at what passes through the model or a part of it."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def is_same(a: nn.Module, b: nn.Module, x: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two classifiers give the same log-probabilities to these images."""
    with torch.no_grad(), eval_mode(a), eval_mode(b):
        one, other = (torch.log_softmax(unwrap(model(x)), dim=1) for model in (a, b))
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance)


def _fold_traced(model: nn.Module) -> nn.Module:
    try:
        traced = fx.symbolic_trace(model)
    except Exception:
        return model
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        before = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(before, fx.Node):
            continue
        norm = modules.get(str(node.target))
        layer = modules.get(str(before.target)) if before.op == "call_module" else None
        fuse = None if layer is None else _FUSE.get(type(layer))
        if fuse is None or not isinstance(norm, _NORMS) or len(before.users) > 1:
            continue
        if norm.running_mean is None or _uses(traced, str(before.target)) > 1:
            continue
        fused = fuse(layer, norm)
        _replace(traced, str(before.target), fused)
        modules[str(before.target)] = fused
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _uses(traced: fx.GraphModule, target: str) -> int:
    """How often a layer is called: one that is shared cannot take in a norm."""
    return sum(node.op == "call_module" and node.target == target for node in traced.graph.nodes)


def _replace(traced: fx.GraphModule, target: str, module: nn.Module) -> None:
    parent, _, name = target.rpartition(".")
    setattr(traced.get_submodule(parent), name, module)
