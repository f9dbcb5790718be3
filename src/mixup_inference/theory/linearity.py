"""How linear a model is between clean images, which is what Section 3.2 assumes (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.models.call import device_of, dtype_of
from mixup_inference.pool import mix
from mixup_inference.theory.measure import probabilities
from mixup_inference.theory.quantities import Estimate, estimate
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import as_pixels, check_int, check_number, check_stored_images


@dataclass(frozen=True)
class Linearity:
    """How far F is from linear between clean images: 0 is perfectly linear, 1 the farthest."""

    lams: tuple[float, ...]
    curve: tuple[Estimate, ...]  # one per lam, over pairs
    overall: Estimate  # of each pair's mean over the lams
    pairs: int


def linearity(
    model: nn.Module,
    images: Tensor,
    *,
    lams: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    pairs: int = 500,
    seed: int = 0,
    batch_size: int = 100,
    progress: Progress = SILENT,
) -> Linearity:
    """The total variation between F(lam a + (1 - lam) b) and lam F(a) + (1 - lam) F(b), Eq. 3.

    That is 1/2 sum_k |F_k(lam a + (1 - lam) b) - lam F_k(a) - (1 - lam) F_k(b)|, averaged over
    random pairs of two different ones of these clean images (NCHW, uint8 or float in [0, 1]).
    The standard errors are over pairs, with the images as given.
    """
    check_stored_images(images, what="images")
    check_int(batch_size, what="batch_size", least=1)
    check_int(pairs, what="pairs", least=2)
    ratios = tuple(check_number(lam, what="a lam", least=0, most=1) for lam in lams)
    if len(images) < 2 or not ratios:
        raise InputError(
            "linearity needs at least two images and one lam; "
            f"saw {len(images)} image(s) and {len(ratios)} lams."
        )
    key = make_key(check_int(seed, what="seed", least=0), "linearity")
    draws = Draws.once(key, torch.arange(pairs))
    first = draws.integers(0, len(images))[:, 0]
    second = draws.integers(1, len(images) - 1)[:, 0]
    second = second + (second >= first).long()  # skip over the first
    kind = images.dtype if images.is_floating_point() else dtype_of(model)
    device = device_of(model)
    parts = []
    with torch.no_grad(), progress.task("linearity", pairs) as task:
        for rows in torch.arange(pairs).split(batch_size):
            a = as_pixels(images[first[rows]].to(device), kind)
            b = as_pixels(images[second[rows]].to(device), kind)
            f_a, f_b = probabilities(model, a), probabilities(model, b)
            mixed = (probabilities(model, mix(a, b, lam)) for lam in ratios)
            off = [f - lam * f_a - (1 - lam) * f_b for lam, f in zip(ratios, mixed, strict=True)]
            parts.append(torch.stack(off, dim=1).abs().sum(2) / 2)
            task.advance(len(rows))
    far = torch.cat(parts)  # (pairs, lams)
    curve = tuple(estimate(column) for column in far.T)
    return Linearity(ratios, curve, estimate(far.mean(1)), pairs)
