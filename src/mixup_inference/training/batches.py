"""Batches: the order of an epoch, random flips and shifts, and the rows of each process.

Randomness is keyed to samples and epochs, so it does not depend on who computes what.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.nn import functional

from mixup_inference.datasets import random_order
from mixup_inference.draws import Draws, make_key
from mixup_inference.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def epoch_batches(recipe: Recipe, count: int, epoch: int, *, replays: int = 1) -> list[Tensor]:
    """The positions of each step's images among ``count``, in batches of nearly equal size.

    An epoch always has as many steps. If a batch is used for several in a row, one pass over the
    data takes as many epochs.
    """
    order = random_order(count, seed=recipe.seed, name=f"epoch {epoch // replays}")
    batches = order.tensor_split(math.ceil(count / recipe.batch_size))
    steps = recipe.steps_of_epoch(count)
    done = epoch % replays * steps
    return [batches[(done + step) // replays] for step in range(steps)]


def augment(x: Tensor, index: Tensor, *, epoch: int, seed: int, flip: bool, padding: int) -> Tensor:
    """Flip half of the images; pad with black and cut out a window of the old size."""
    draws = Draws.once(make_key(seed, "augment", epoch), index)
    if flip:
        flipped = draws.integers(0, 2)[:, 0].bool()
        x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
    if padding:
        x = _windows(
            functional.pad(x, (padding,) * 4),
            draws.integers(1, 2 * padding + 1)[:, 0],
            draws.integers(2, 2 * padding + 1)[:, 0],
            x.shape[-2:],
        )
    return x


def _windows(x: Tensor, top: Tensor, left: Tensor, size: torch.Size) -> Tensor:
    """Cut a window out of each image, at its own place."""
    sample = torch.arange(x.shape[0], device=x.device)[:, None, None]
    rows = (top[:, None] + torch.arange(size[0], device=x.device))[:, :, None]
    columns = (left[:, None] + torch.arange(size[1], device=x.device))[:, None, :]
    return x.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)


def own_rows(fabric: Fabric, count: int, rank: int | None = None) -> slice:
    """The rows of a batch that belong to a process, by default this one."""
    rank = fabric.global_rank if rank is None else rank
    return slice(rank * count // fabric.world_size, (rank + 1) * count // fabric.world_size)


class _GatherRows(torch.autograd.Function):
    """Collect all rows; the gradient of a row is the sum over the processes that used it."""

    @staticmethod
    def forward(ctx: Any, fabric: Fabric, x: Tensor, count: int) -> Tensor:
        ctx.own = own_rows(fabric, count)
        return _all_rows(fabric, x, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        total = grads[0].contiguous()
        distributed.all_reduce(total)
        return None, total[ctx.own], None


def gather_rows(fabric: Fabric, x: Tensor, count: int) -> Tensor:
    """Collect all rows of a batch from the processes that they belong to."""
    out: Tensor = _GatherRows.apply(fabric, x, count)  # type: ignore[no-untyped-call]
    return out


def _all_rows(fabric: Fabric, x: Tensor, count: int) -> Tensor:
    most = -(-count // fabric.world_size)
    padded = x.new_zeros(most, *x.shape[1:])  # every process sends as many
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in range(fabric.world_size)]
    distributed.all_gather(parts, padded)
    shares = [own_rows(fabric, count, rank) for rank in range(fabric.world_size)]
    return torch.cat(
        [part[: rows.stop - rows.start] for part, rows in zip(parts, shares, strict=True)]
    )
