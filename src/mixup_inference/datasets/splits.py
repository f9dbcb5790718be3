"""Labelled images, and disjoint seeded splits of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mixup_inference.checks import as_pixels, check_int
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError


@dataclass(frozen=True)
class LabelledImages:
    """Images (NCHW, uint8 or float in [0, 1]), labels, and their positions in the data set."""

    images: Tensor
    labels: Tensor
    index: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def classes(self) -> int:
        """The number of classes L."""
        return len(self.class_names)

    @property
    def pixels(self) -> Tensor:
        """The images as float32 in [0, 1]."""
        return as_pixels(self.images)

    def take(self, rows: Tensor) -> LabelledImages:
        """The images in these rows."""
        return LabelledImages(
            self.images[rows], self.labels[rows], self.index[rows], self.class_names
        )

    def fitted(
        self, *, size: int | tuple[int, int] | None = None, channels: int | None = None
    ) -> LabelledImages:
        """The images resized (a side, or height and width), and made grey (1) or colour (3)."""
        images = self.images
        if channels not in (None, 1, 3) or (channels is not None and images.shape[1] not in (1, 3)):
            raise InputError(f"images have 1 or 3 channels; saw {images.shape[1]} -> {channels}.")
        if channels == 3 and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        elif channels == 1 and images.shape[1] == 3:
            images = _mapped(images, lambda part: (part * _LUMA).sum(1, keepdim=True))
        side = check_size(size)
        if side is not None and tuple(images.shape[-2:]) != side:
            images = _mapped(images, lambda part: _resize(part.float(), side))
        return LabelledImages(images, self.labels, self.index, self.class_names)


def check_size(size: object) -> tuple[int, int] | None:
    """A side, or height and width, as height and width."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise InputError(f"size must be one whole number or (height, width); saw {size!r}.")
    return check_int(sides[0], what="size", least=1), check_int(sides[1], what="size", least=1)


def check_memory(count: int, shape: tuple[int, ...], bytes_each: int = 1) -> None:
    """Refuse images that do not fit into this machine's memory."""
    needed, there = bytes_each * count * math.prod(shape), _memory()
    if needed > there:
        raise InputError(
            f"{count:,} images of {shape[2]}x{shape[1]} pixels with {shape[0]} channels need "
            f"{needed / 1e9:,.1f} GB of memory, and this machine has {there / 1e9:,.1f} GB. Give a "
            "smaller size (size=32 in Python, --size 32 on the command line), or fewer images."
        )


def _memory() -> float:
    """How many bytes of memory this machine has; infinite where the system does not say."""
    try:
        size, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
    return size * pages if size > 0 and pages > 0 else math.inf


def _mapped(images: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of all images, a few at a time, in the type of the images."""
    shape = tuple(function(images[:1]).shape[1:])
    check_memory(len(images), shape, images.element_size())
    out = images.new_empty((len(images), *shape))
    for rows in torch.arange(len(images)).split(256):
        values = function(images[rows])
        out[rows] = values if out.is_floating_point() else values.round().to(out.dtype)
    return out


#: How much the eye sees of red, green and blue (ITU-R 601).
_LUMA = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)


def _resize(images: Tensor, side: tuple[int, int]) -> Tensor:
    return interpolate(images, side, mode="bilinear", align_corners=False, antialias=True)


@dataclass(frozen=True)
class Dataset:
    """A data set; ``test`` is None where there is no official division."""

    train: LabelledImages
    test: LabelledImages | None = None

    def fitted(
        self, *, size: int | tuple[int, int] | None = None, channels: int | None = None
    ) -> Dataset:
        """Both parts resized, and made grey (1) or colour (3)."""
        test = self.test and self.test.fitted(size=size, channels=channels)
        return Dataset(self.train.fitted(size=size, channels=channels), test)


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
    """Disjoint random parts of the given sizes; what remains is called ``rest``, if it is wanted.

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
