"""A copy of a classifier for inference and attacks: the same function, fewer operations.

Batch norms in eval mode are affine, so they fold into the convolution before them; convolutions on
a CPU prefer the memory format channels-last; and weights that need no gradient cost none. A copy
may also compute in bfloat16, which is 1.5 to 2 times as fast on processors that can, and rounds.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from mixup_inference.models.call import batch_for, eval_mode, unwrap
from mixup_inference.utils.profiling import Stage, timed

#: For fewer images, making a copy takes longer than it saves.
WORTHWHILE = 500

#: The largest allowed difference in log-probabilities between a copy and the model.
TOLERANCE = 1e-4

#: The largest allowed difference in probabilities, for a copy that rounds.
ROUNDED = 0.1

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Folded(nn.Module):
    """A folded copy: channels-last, in batches of the fastest size. See ``fold``."""

    def __init__(self, model: nn.Module, *, rounds: bool = False) -> None:
        super().__init__()
        self.rounds = rounds
        self._copy(model)

    def forward(self, x: Tensor) -> Tensor:
        """The model's logits."""
        x = x.contiguous(memory_format=torch.channels_last)
        if len(x) <= (most := batch_for(x, self.model)):
            return self._logits(x)
        return torch.cat([self._logits(part) for part in x.split(most)])

    @torch.no_grad()
    def refresh(self, model: nn.Module) -> None:
        """Update the copy to the model's present weights and statistics.

        This is much cheaper than another copy, unless tracing has left tensors in the copy that
        the model does not have; then it is copied again.
        """
        theirs = _tensors(model)
        ours = {
            name: tensor
            for name, tensor in _tensors(self.model).items()
            if name.rpartition(".")[0] not in self.norms
        }
        if not ours.keys() <= theirs.keys():
            self._copy(model)
            return
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])
        for name, norm in self.norms.items():
            layer = self.model.get_submodule(name)
            weight, bias = _fused(model.get_submodule(name), model.get_submodule(norm))
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)

    def _copy(self, model: nn.Module) -> None:
        """Copy the model; ``norms`` maps each layer to the norm that was folded into it."""
        folded, self.norms = _fold_traced(bare(model))
        self.model = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def _logits(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16) if self.rounds else nullcontext():
            out: Tensor = unwrap(self.model(x))
        return out.to(x.dtype) if self.rounds else out


def fold(model: nn.Module, *, rounds: bool = False) -> Folded:
    """Copy a model in eval mode: batch norms folded, channels-last, without weight gradients.

    Later changes of the model do not reach the copy until ``refresh``. In a network that cannot be
    traced, because its control flow depends on values, batch norms are not folded.

    Args:
        model: a classifier.
        rounds: compute in bfloat16.
    """
    return Folded(model, rounds=rounds)


def bare(model: nn.Module) -> nn.Module:
    """Copy a model in eval mode, without weight gradients and without its hooks."""
    twin = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    twin._forward_hooks.clear()
    return twin


@timed(Stage.COPYING)
def faster(model: nn.Module, x: Tensor, *, images: int, rounds: bool = False) -> nn.Module:
    """``fold(model)`` if that pays for so many images and is the same function; else the model.

    A model with hooks is returned as it is.

    Args:
        model: a classifier without randomness.
        x: some images, on which the two are compared.
        images: how many are going to pass.
        rounds: compute in bfloat16, if that changes no probability by much.
    """
    if not pays(model, images=images):
        return model
    for rounded in (True, False) if rounds else (False,):
        folded = fold(model, rounds=rounded)
        try:
            if is_same(model, folded, x[:8]):
                return folded
        except RuntimeError:  # the model asks for another memory format, as ``view`` can
            continue
    return model


def pays(model: nn.Module, *, images: int) -> bool:
    """Whether a folded copy may be made of the model, and is worth it for so many images."""
    convolves = any(isinstance(part, nn.Conv2d) for part in model.modules())
    return (
        images >= WORTHWHILE
        and convolves
        and not model.training
        and not isinstance(model, Folded)
        and not is_watched(model)
    )


def is_watched(model: nn.Module) -> bool:
    """Whether the model or a part of it has forward hooks."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def is_same(model: nn.Module, folded: Folded, x: Tensor) -> bool:
    """Whether a copy agrees with the model on these images, within the tolerance."""
    return deviation(model, folded, x, rounds=folded.rounds) <= allowed(rounds=folded.rounds)


def allowed(*, rounds: bool) -> float:
    """The largest deviation that a copy may have."""
    return ROUNDED if rounds else TOLERANCE


@torch.no_grad()
def deviation(
    model: nn.Module, twin: Callable[[Tensor], Tensor], x: Tensor, *, rounds: bool
) -> float:
    """The largest difference in log-probabilities, or in probabilities if the copy rounds.

    NaN if an output has NaN.
    """
    with eval_mode(model):
        logits = unwrap(model.forward(x)), unwrap(twin(x))  # without hooks, which are the caller's
    if logits[0].shape != logits[1].shape:
        return torch.inf
    one, other = (torch.log_softmax(out, dim=1) for out in logits)
    difference = one.exp() - other.exp() if rounds else one - other
    return float(difference.abs().max())


def _fold_traced(model: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """Fold the norms of a model; also map each changed layer to the name of its norm."""
    norms: dict[str, str] = {}
    try:
        traced = fx.symbolic_trace(model)
    except Exception:
        return model, norms
    modules: dict[str, Any] = dict(traced.named_modules())
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    uses = Counter(str(node.target) for node in calls)
    for node in calls:
        before: Any = node.args[0] if node.args else None
        norm = modules.get(str(node.target))
        if before not in calls or not isinstance(norm, _NORMS) or norm.running_mean is None:
            continue
        name = str(before.target)
        layer: Any = modules.get(name)
        shared = len(before.users) > 1 or uses[name] > 1 or name in norms
        if type(layer) not in _LAYERS or shared:
            continue
        layer.weight, layer.bias = (p.requires_grad_(False) for p in _fused(layer, norm))  # noqa: FBT003
        norms[name] = str(node.target)
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced, norms


def _fused(layer: nn.Module, norm: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """The weight and bias of one layer that is equivalent to the layer and the norm."""
    fuse: Any = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
    mean, variance = norm.running_mean, norm.running_var
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias
    out: tuple[nn.Parameter, nn.Parameter] = fuse(
        layer.weight, layer.bias, mean, variance, norm.eps, weight, bias
    )
    return out


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name; a shared one under each of its names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
