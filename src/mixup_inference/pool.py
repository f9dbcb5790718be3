"""The pool of clean samples p_s(x | y), and the line that mixes an input with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from mixup_inference.datasets import as_tensors
from mixup_inference.draws import scale_bits
from mixup_inference.errors import InputError
from mixup_inference.validation import as_pixels, check_int, check_labels, check_stored_images


def mix(x: Tensor, x_s: Tensor, lam: Tensor | float, *, in_place: bool = False) -> Tensor:
    """x~ = lam x + (1 - lam) x_s (Algorithm 1); the shapes broadcast.

    ``in_place`` writes the result into ``x_s``, which saves two temporary copies. It also fuses a
    multiplication with the addition, so the last bit of a float32 may differ.

    >>> mix(torch.tensor(1.0), torch.tensor(0.0), 0.75)
    tensor(0.7500)
    """
    if in_place:
        return x_s.mul_(1 - lam).addcmul_(torch.as_tensor(lam), x)
    return lam * x + (1 - lam) * x_s


class Pool(nn.Module):
    """Clean images by class.

    Use training images: a pool of test images leaks test labels into the defence. uint8 images
    stay uint8 and are scaled to [0, 1] when drawn. The pool is a module without parameters, so
    it follows the defence to its device, and its images are not part of any ``state_dict``.

    A pool that is larger than memory stays on disk: map a file of uint8 images,
    ``Pool(numpy.load("images.npy", mmap_mode="r"), labels)``. It is not read when the pool is
    made, and then only where images are drawn. (Float images are all read once, to be checked.)

    Args:
        images: NCHW, uint8 or float in [0, 1], a tensor or an array, which is not copied; or a
            Dataset or loader of (image, label), which is read. What is drawn depends on the
            order, so give a loader that does not shuffle.
        labels: one integer per image; left out when ``images`` is a Dataset or loader.
        classes: the number of classes; by default the largest label plus one.

    >>> pool = Pool(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2]))
    >>> pool
    Pool(6 images of 1x2x2, uint8, 3 classes)
    """

    images: Tensor
    labels: Tensor
    _order: Tensor  # image numbers, sorted by class
    _start: Tensor  # where each class begins in _order
    _count: Tensor

    def __init__(
        self,
        images: Tensor | npt.NDArray[Any] | Iterable[Any],
        labels: Tensor | npt.NDArray[Any] | None = None,
        *,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        images, labels = as_tensors(images, labels, what="the pool")
        if classes is not None:
            check_int(classes, what="classes", least=1)
        check_stored_images(images, what="the pool")
        labels = check_labels(labels, count=len(images), classes=classes, what="the pool's labels")
        count = torch.bincount(labels, minlength=classes or 0)
        if empty := [str(c) for c in torch.nonzero(count == 0).flatten().tolist()]:
            shown = ", ".join(empty[:10]) + (", ..." if len(empty) > 10 else "")
            raise InputError(
                f"the pool has no image of class {shown} (of {len(count)} classes); "
                "every class needs at least one."
            )
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("_order", torch.argsort(labels, stable=True), persistent=False)
        self.register_buffer("_start", torch.cumsum(count, 0) - count, persistent=False)
        self.register_buffer("_count", count, persistent=False)

    @property
    def classes(self) -> int:
        """The number of classes L."""
        return int(self._count.shape[0])

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def draw(self, labels: Tensor, bits: Tensor) -> Tensor:
        """For each label and its random bits, the number of one image of that class."""
        return self.nth(labels, scale_bits(bits, self.count(labels)))

    def count(self, labels: Tensor) -> Tensor:
        """For each label, how many images of that class there are."""
        return self._count[labels]

    def nth(self, labels: Tensor, n: Tensor) -> Tensor:
        """For each label, the number of the n-th image of that class."""
        return self._order[self._start[labels] + n]

    def pixels(self, numbers: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The images with these numbers as floats in [0, 1], shape (*numbers.shape, C, H, W)."""
        return as_pixels(self.images[numbers], dtype)

    def __repr__(self) -> str:
        kind = str(self.images.dtype).removeprefix("torch.")
        size = "x".join(str(n) for n in self.images.shape[1:])
        return f"Pool({len(self)} images of {size}, {kind}, {self.classes} classes)"
