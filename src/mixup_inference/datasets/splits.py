"""Disjoint, seeded random splits of a data set."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mixup_inference.datasets.base import Dataset, LabelledImages
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError


def random_order(count: int, *, seed: int, name: str) -> Tensor:
    """A random permutation of 0..count-1 that depends on the seed and the name only."""
    draws = Draws.once(make_key(seed, name), torch.arange(count))
    return torch.argsort(draws.bits(0)[:, 0])


def split(
    data: LabelledImages,
    sizes: Mapping[str, int],
    *,
    seed: int,
    rest: str | None = None,
    apart: bool = False,
) -> dict[str, LabelledImages]:
    """Split into disjoint random parts of the given sizes; the remainder is called ``rest``.

    With ``apart``, the first part grows from one end of the random order and the others from the
    other end, so that a first part of another size does not take points from them.

    >>> data = LabelledImages(
    ...     torch.zeros(9, 1, 2, 2), torch.arange(9) % 3, torch.arange(9), ("a", "b", "c"))
    >>> {k: len(v) for k, v in split(data, {"test": 4, "tuning": 2}, seed=0, rest="train").items()}
    {'test': 4, 'tuning': 2, 'train': 3}
    """
    wanted = sum(sizes.values())
    if wanted > len(data) or (rest is not None and wanted == len(data)):
        remain = f" and some must remain for {rest!r}" if rest else ""
        raise InputError(
            f"the splits ask for {wanted} points ({dict(sizes)}), but the data set has only "
            f"{len(data)}{remain}."
        )
    order = random_order(len(data), seed=seed, name="split")
    if apart:
        first = next(iter(sizes.values()))
        order = torch.cat([order[:first], order[first:].flip(0)])
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = data.take(order[start : start + size])
        start += size
    if rest is not None:
        parts[rest] = data.take(order[start:])
    return parts


def experiment_points(
    data: Dataset, sizes: Mapping[str, int], *, seed: int
) -> dict[str, LabelledImages]:
    """Disjoint parts for an experiment: ``train``, and those of the given sizes.

    With an official test set, all of the latter come from it and ``train`` is the official one;
    otherwise ``train`` is what they leave over.
    """
    if data.test is None:
        return split(data.train, sizes, seed=seed, rest="train")
    return split(data.test, sizes, seed=seed, apart=True) | {"train": data.train}
