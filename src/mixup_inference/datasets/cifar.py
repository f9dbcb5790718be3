"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in their official binary layout.

They are read from the extracted folder or straight from the archive, wherever the user has them,
and every file is checked against its published MD5 before a pixel is used. Nothing is extracted,
so an archive cannot write anywhere.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mixup_inference.datasets.splits import Dataset, LabelledImages
from mixup_inference.errors import InputError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Where a data set's files are and what is in them."""

    title: str
    folder: str
    archive: str
    train: Mapping[str, str]  # file name -> MD5
    test: Mapping[str, str]
    label_bytes: int  # the last one is the label; CIFAR-100 has the coarse one before it
    names: str  # the file with the class names

    def load(self, root: Path, read: Callable[[str], bytes] | None = None) -> Dataset:
        """The training and the test images."""
        read = read or find(self, root)
        names = tuple(read(self.names).decode("ascii").split())
        train = self._images(read, self.train, names, start=0)
        return Dataset(train, self._images(read, self.test, names, start=len(train)))

    def _images(
        self,
        read: Callable[[str], bytes],
        files: Mapping[str, str],
        names: tuple[str, ...],
        start: int,
    ) -> LabelledImages:
        parts = []
        for file, md5 in files.items():
            content = read(file)
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                raise InputError(
                    f"{file} of {self.title} is not the official file: its MD5 is not {md5} "
                    f"({len(content):,} bytes). Replace it; it may be truncated or altered."
                )
            parts.append(np.frombuffer(content, np.uint8).reshape(-1, self.label_bytes + PIXELS))
        records = torch.from_numpy(np.concatenate(parts))
        labels = records[:, self.label_bytes - 1].long()
        images = records[:, self.label_bytes :].reshape(-1, 3, 32, 32).contiguous()
        index = torch.arange(start, start + len(labels))
        return LabelledImages(images, labels, index, names)


CIFAR10 = Layout(
    title="CIFAR-10",
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
    label_bytes=1,
    names="batches.meta.txt",
)

CIFAR100 = Layout(
    title="CIFAR-100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
    label_bytes=2,
    names="fine_label_names.txt",
)


def find(layout: Layout, root: Path) -> Callable[[str], bytes]:
    """A reader of the layout's files: ``root`` is or holds the folder or the archive."""
    for folder in (root / layout.folder, root):
        if all((folder / name).is_file() for name in (*layout.train, *layout.test)):
            return lambda name: (folder / name).read_bytes()
    for archive in (root / layout.archive, root):
        if archive.is_file():
            return lambda name: _member(archive, f"{layout.folder}/{name}")
    raise InputError(
        f"{layout.title} is not in {root}. Put the official {layout.archive}, or the folder "
        f"{layout.folder} from it, there; or say where it is with --data-root or "
        "$MIXUP_INFERENCE_DATA."
    )


def _member(archive: Path, name: str) -> bytes:
    """The content of one file in an archive."""
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile(name)
            if file is not None:
                return file.read()
    except (tarfile.TarError, OSError, EOFError, KeyError):
        pass
    raise InputError(
        f"cannot read {name} from {archive}: it is not the official archive, or it is truncated."
    )
