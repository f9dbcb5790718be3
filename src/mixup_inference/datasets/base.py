"""Data sets: images with labels, what is known of them, and where they come from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mixup_inference.errors import InputError
from mixup_inference.utils.progress import Progress
from mixup_inference.validation import as_pixels, check_int

#: A side in pixels, or height and width; None leaves images as they are.
Size = int | tuple[int, int] | None


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
        images, labels, index = self.images[rows], self.labels[rows], self.index[rows]
        return LabelledImages(images, labels, index, self.class_names)

    def fitted(self, *, size: Size = None, channels: int | None = None) -> LabelledImages:
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
            resize = partial(interpolate, size=side, mode="bilinear", antialias=True)
            images = _mapped(images, lambda part: resize(part.float()))
        return replace(self, images=images)


def check_size(size: object) -> tuple[int, int] | None:
    """Return (height, width) for a side or a pair; None stays None."""
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
    """The memory of this machine in bytes; infinite if the system does not say."""
    try:
        size, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
    return size * pages if size > 0 and pages > 0 else math.inf


def _mapped(images: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to all images, a few at a time, and keep their type."""
    shape = tuple(function(images[:1]).shape[1:])
    check_memory(len(images), shape, images.element_size())
    out = images.new_empty((len(images), *shape))
    for rows in torch.arange(len(images)).split(256):
        values = function(images[rows])
        out[rows] = values if out.is_floating_point() else values.round().to(out.dtype)
    return out


#: How much the eye sees of red, green and blue (ITU-R 601).
_LUMA = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)


@dataclass(frozen=True)
class Dataset:
    """A data set; ``test`` is None where there is no official division."""

    train: LabelledImages
    test: LabelledImages | None = None

    @classmethod
    def of(cls, class_names: tuple[str, ...], *parts: tuple[Tensor, Tensor]) -> Dataset:
        """Make one of the images and labels of train and perhaps test, numbered throughout."""
        start, labelled = 0, []
        for images, labels in parts:
            index = torch.arange(start, start := start + len(labels))
            labelled.append(LabelledImages(images, labels, index, class_names))
        return cls(*labelled)

    def fitted(self, *, size: Size = None, channels: int | None = None) -> Dataset:
        """Both parts resized, and made grey (1) or colour (3)."""
        test = self.test and self.test.fitted(size=size, channels=channels)
        return Dataset(self.train.fitted(size=size, channels=channels), test)


@dataclass(frozen=True)
class Shape:
    """How many images of what size, and how many classes."""

    train: int
    test: int
    channels: int
    size: tuple[int, int]
    classes: int

    @classmethod
    def of(cls, data: Dataset) -> Shape:
        """The shape of a data set that is in memory."""
        channels, height, width = data.train.images.shape[1:]
        test = 0 if data.test is None else len(data.test)
        return cls(len(data.train), test, channels, (height, width), data.train.classes)

    def __str__(self) -> str:
        count = f"{self.train:,}" + (f" + {self.test:,}" if self.test else "")
        kind = "grey" if self.channels == 1 else "colour"
        size = "x".join(str(side) for side in self.size)
        return f"{count} {kind} images of {size}, {self.classes} classes"


class Source(Protocol):
    """A data set on disk that can be found, read with its checksums verified, and fetched."""

    @property
    def title(self) -> str:
        """Its proper name."""

    @property
    def shape(self) -> Shape:
        """What is in it, known without reading it."""

    def place(self, root: Path) -> Path | None:
        """The folder or archive that holds it, or None when it is not there."""

    def load(self, root: Path) -> Dataset:
        """Read and verify it; MissingDataError says what to put where."""

    def download(self, root: Path, progress: Progress) -> None:
        """Fetch it into ``root``; DownloadError says which sources failed and why."""


@dataclass(frozen=True)
class DatasetEntry:
    """A data set in the registry.

    Attributes:
        name: in specs and on the command line.
        source: files that are found, verified and fetched; or a function without arguments that
            returns a ``Dataset`` or what ``as_dataset`` makes one of.
    """

    name: str
    source: Source | Callable[[], Any]


def load_digits() -> Dataset:
    """All 1,797 digits, from the UCI optical recognition set, with pixels in [0, 1].

    The source has 17 grey levels, 0 to 16, which are divided by 16.
    """
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow to import)

    bunch = load()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    return Dataset.of(tuple(str(name) for name in bunch.target_names), (images, labels))
