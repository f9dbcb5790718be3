"""Flips and shifts, for a whole batch at once, seeded per sample and epoch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mixup_inference.draws import Draws, make_key


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
    """A window of each image, at its own place."""
    sample = torch.arange(x.shape[0], device=x.device)[:, None, None]
    rows = (top[:, None] + torch.arange(size[0], device=x.device))[:, :, None]
    columns = (left[:, None] + torch.arange(size[1], device=x.device))[:, None, :]
    return x.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)
