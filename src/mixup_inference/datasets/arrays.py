"""Convert a user's arrays, Dataset or DataLoader to tensors of images and labels."""

from __future__ import annotations

import warnings
from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from mixup_inference.datasets.base import Dataset
from mixup_inference.datasets.image_file import eight_bits, is_grey
from mixup_inference.errors import InputError
from mixup_inference.validation import check_labels, check_stored_images


def as_tensors(images: Any, labels: Any = None, *, what: str = "the data") -> tuple[Tensor, Tensor]:
    """Two tensors or arrays, or a Dataset or DataLoader of (image, label), as two tensors.

    Images of a Dataset may be tensors, arrays (channels first) or PIL images. Arrays are not
    copied, so one that is mapped from a file stays on disk.

    >>> data = [(torch.zeros(1, 2, 2), 0), (torch.ones(1, 2, 2), 1)]
    >>> [tuple(tensor.shape) for tensor in as_tensors(data)]
    [(2, 1, 2, 2), (2,)]
    """
    if labels is None:
        return _collect(images, what)
    return _tensor(images, f"{what}'s images"), _tensor(labels, f"{what}'s labels")


def as_dataset(data: Any, *, what: str = "the data set") -> Dataset:
    """Make a ``Dataset`` of a pair (train, test), in which test may be None, or of train alone.

    A part is a pair (images, labels) of tensors or arrays, or a Dataset or DataLoader of such.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "shape"):
        data = data, None  # images and labels
    if not isinstance(data, tuple | list) or len(data) != 2 or data[0] is None:
        raise InputError(f"{what} must be a Dataset or a pair (train, test); saw {data!r:.100}.")
    given = (part for part in data if part is not None)
    parts = [as_tensors(*part) if isinstance(part, tuple) else as_tensors(part) for part in given]
    names = tuple(str(label) for label in range(1 + max(int(labels.max()) for _, labels in parts)))
    checked = []
    for images, integers in parts:
        check_stored_images(images, what=f"{what}'s images")
        labels = check_labels(integers, count=len(images), what=f"{what}'s labels")
        checked.append((images if images.dtype == torch.uint8 else images.float(), labels))
    return Dataset.of(names, *checked)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return _shared(values)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{what} must be a tensor or an array; saw {type(values).__name__}."
        ) from None


def _shared(values: Any) -> Tensor:
    """Convert to a tensor that shares the memory of an array.

    PyTorch warns about read-only arrays, because it would not prevent a write; nothing here writes.
    """
    if not isinstance(values, np.ndarray) or values.flags.writeable:
        return torch.as_tensor(values)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(values)


def _collect(source: Any, what: str) -> tuple[Tensor, Tensor]:
    """All images and labels of a loader (batches) or a map-style Dataset (single samples)."""
    if isinstance(source, Tensor) or hasattr(source, "__array__"):
        raise InputError(f"{what} needs labels beside the images.")
    loader = isinstance(source, DataLoader)
    batched = loader and source.batch_sampler is not None
    if not loader and not (isinstance(source, Sized) and hasattr(source, "__getitem__")):
        raise InputError(
            f"{what} is given as images and labels, or as a Dataset or DataLoader of such pairs; "
            f"saw {type(source).__name__}."
        )
    items = source if loader else (source[i] for i in range(len(source)))
    images, labels = [], []
    for number, item in enumerate(items):
        try:
            image, label = item
            image = _image(image)
            images.append(image if batched else image[None])
            labels.append(torch.as_tensor(label) if batched else torch.as_tensor(label).reshape(1))
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"item {number} of {what} is not a pair (image, label) of tensors or arrays; "
                f"saw {type(item).__name__}."
            ) from None
    if not images:
        raise InputError(f"{what} is empty.")
    try:
        return torch.cat(images), torch.cat(labels)
    except (RuntimeError, TypeError):
        raise InputError(f"the images of {what} must all have one size; resize them.") from None


def _image(image: Any) -> Tensor:
    """A tensor; a PIL image becomes uint8 with its channels first."""
    if hasattr(image, "getbands"):
        grey = is_grey(image)
        pixels = torch.from_numpy(np.array(eight_bits(image, "L" if grey else "RGB")))
        return pixels[None] if grey else pixels.permute(2, 0, 1)
    return _shared(image)
