"""Batch norm over the rows of all processes, as if they were one batch.

torch's ``SyncBatchNorm`` refuses CPUs; this one works on any device that the processes'
collectives support.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


@contextmanager
def joint_batch_norm(model: nn.Module) -> Iterator[None]:
    """Make the batch norms of a model use the rows of all processes in training mode.

    Inside the context their ``forward`` is replaced; modules, names and weights stay. Subclasses
    with a ``forward`` of their own are left alone.
    """
    norms: list[Any] = [
        part
        for part in model.modules()
        if isinstance(part, _BatchNorm) and type(part).forward in _FORWARDS
    ]
    for norm in norms:
        norm.forward = partial(_forward, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: Any, x: Tensor) -> Tensor:
    if not norm.training:
        out: Tensor = type(norm).forward(norm, x)
        return out
    norm._check_input_dim(x)
    values: Tensor = x.to(torch.promote_types(x.dtype, torch.float32))
    mean, variance, count = _moments(values.detach())
    if norm.running_mean is not None:
        _remember(norm, mean, variance, count)
    scale = (variance + norm.eps).rsqrt()
    values = _Normalise.apply(values, mean, scale, count)  # type: ignore[no-untyped-call]
    if norm.weight is not None:
        values = values * _column(norm.weight, x)
    if norm.bias is not None:
        values = values + _column(norm.bias, x)
    return values.to(x.dtype)


class _Normalise(torch.autograd.Function):
    """(x - mean) * scale, with the gradient that also goes through mean and scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, count: Tensor) -> Tensor:
        normal = (x - _column(mean, x)) * _column(scale, x)
        ctx.save_for_backward(normal, scale, count)
        return normal

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grads
        normal, scale, count = ctx.saved_tensors
        sums = torch.stack((_sum(grad), _sum(grad * normal)))
        through_mean, through_scale = _summed(sums) / count
        inside = grad - _column(through_mean, grad) - normal * _column(through_scale, grad)
        return _column(scale, grad) * inside, None, None, None


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance (biased) and number of the values of each channel, over all processes."""
    rows = x.new_tensor([x.numel() // x.shape[1]])
    sums = _summed(torch.cat((_sum(x), rows)))
    mean, count = sums[:-1] / sums[-1], sums[-1]
    return mean, _summed(_sum((x - _column(mean, x)).square())) / count, count


@torch.no_grad()
def _remember(norm: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update the running statistics as torch does, with the unbiased variance."""
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    unbiased = variance * (count / (count - 1).clamp(min=1))
    norm.running_mean.mul_(1 - share).add_(share * mean)
    norm.running_var.mul_(1 - share).add_(share * unbiased)


def _sum(x: Tensor) -> Tensor:
    """The sum of each channel."""
    return x.sum([dim for dim in range(x.ndim) if dim != 1])


def _column(channels: Tensor, x: Tensor) -> Tensor:
    """A number for each channel, in the shape that broadcasts over x."""
    return channels.view(1, -1, *[1] * (x.ndim - 2))


def _summed(x: Tensor) -> Tensor:
    """Sum over all processes, in place."""
    distributed.all_reduce(x)
    return x
