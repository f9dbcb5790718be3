"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017) in its IDX files, plain or compressed.

They are read wherever the user, torchvision or Debian put them. What counts is the content: it is
checked against its MD5 after unpacking, because Debian compresses the same data anew.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixup_inference.datasets.base import Dataset, Shape
from mixup_inference.datasets.download import RemoteFile, fetch
from mixup_inference.errors import DownloadError, InputError, MissingDataError
from mixup_inference.utils.progress import Progress

FOLDER = "fashion-mnist"
TORCHVISION = "FashionMNIST/raw"
#: Where Debian's package dataset-fashion-mnist puts it.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)
CLASSES = tuple(
    "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")  # noqa: SIM905
)


@dataclass(frozen=True)
class IdxFile:
    """An array of bytes in a file, and the compressed file as it is published."""

    name: str
    shape: tuple[int, ...]
    md5: str  # of the file's content when it is not compressed
    packed_size: int
    packed_md5: str

    @property
    def header(self) -> bytes:
        """How the content begins: type 8 (unsigned bytes), the dimensions, and their lengths."""
        lengths = b"".join(length.to_bytes(4, "big") for length in self.shape)
        return bytes((0, 0, 8, len(self.shape))) + lengths

    @property
    def size(self) -> int:
        """How many bytes the content has."""
        return len(self.header) + math.prod(self.shape)

    def path(self, folder: Path) -> Path | None:
        """The file in this folder, or None. The compressed one first: a download mends that."""
        paths = (folder / f"{self.name}.gz", folder / self.name)
        return next((path for path in paths if path.is_file()), None)

    def read(self, folder: Path) -> Tensor:
        """The verified array."""
        path = self.path(folder)
        if path is None:
            raise MissingDataError(f"there is neither {self.name}.gz nor {self.name} in {folder}.")
        content = _content(path, self.size + 1)  # one more, to see what is too long
        if flaw := self._flaw(content):
            raise InputError(
                f"{path} is not the official file of Fashion-MNIST: {flaw}. Replace it. It may be "
                "truncated or altered, or belong to MNIST, whose files have the same names."
            )
        array = np.frombuffer(content, np.uint8, offset=len(self.header))
        return torch.from_numpy(array.reshape(self.shape).copy())

    def _flaw(self, content: bytes) -> str | None:
        if len(content) != self.size:
            seen = f"only {len(content):,}" if len(content) < self.size else "more"
            return f"its content should have {self.size:,} bytes and has {seen}"
        start = content[: len(self.header)]
        if start != self.header:
            return f"it begins with {start.hex(' ')} and not with {self.header.hex(' ')}"
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return None if md5 == self.md5 else f"the MD5 of its content is {md5} and not {self.md5}"


def _content(path: Path, most: int) -> bytes:
    """The first ``most`` bytes of a file's content; a bomb is not unpacked further than that."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(most)
    except Exception as error:  # a broken file can fail in any way it likes
        raise InputError(f"cannot read {path} ({error}). Replace it.") from None


@dataclass(frozen=True)
class FashionMnist:
    """The data set: images and labels to train with, and to test with."""

    files: tuple[IdxFile, ...]
    title: str = "Fashion-MNIST"

    @property
    def shape(self) -> Shape:
        """What is in it, known without reading it."""
        return Shape(60_000, 10_000, 1, (28, 28), 10)

    def place(self, root: Path) -> Path | None:
        """The folder that holds all four files, or None."""
        for folder in (root / FOLDER, root / TORCHVISION, root, DEBIAN):
            if all(file.path(folder) for file in self.files):
                return folder
        return None

    def load(self, root: Path) -> Dataset:
        """The 60,000 training and 10,000 test images."""
        folder = self.place(root)
        if folder is None:
            raise MissingDataError(f"{self.title} is not in {root}. {self._advice(root)}")
        x, y, x_test, y_test = (file.read(folder) for file in self.files)
        train, test = (x.unsqueeze(1), y.long()), (x_test.unsqueeze(1), y_test.long())
        return Dataset.of(CLASSES, train, test)

    def download(self, root: Path, progress: Progress) -> None:
        """Fetch the compressed files, 31 MB, into ``root``."""
        try:
            for file in self.files:
                urls = tuple(f"{mirror}/{file.name}.gz" for mirror in MIRRORS)
                remote = RemoteFile(f"{file.name}.gz", urls, file.packed_size, file.packed_md5)
                fetch(remote, root / FOLDER, progress=progress)
        except DownloadError as error:
            raise DownloadError(f"{error}\nWithout a network: {self._advice(root)}") from None

    def _advice(self, root: Path) -> str:
        return (
            f"Put {', '.join(file.name for file in self.files)}, each plain or as .gz, into "
            f"{root / FOLDER}; or install Debian's package dataset-fashion-mnist; or say where "
            "they are with --data-root or $MIXUP_INFERENCE_DATA."
        )


# fmt: off
FASHION_MNIST = FashionMnist(
    files=(
        IdxFile("train-images-idx3-ubyte", (60000, 28, 28), "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                packed_size=26421880, packed_md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        IdxFile("train-labels-idx1-ubyte", (60000,), "9018921c3c673c538a1fc5bad174d6f9",
                packed_size=29515, packed_md5="25c81989df183df01b3e8a0aad5dffbe"),
        IdxFile("t10k-images-idx3-ubyte", (10000, 28, 28), "8181f5470baa50b63fa0f6fddb340f0a",
                packed_size=4422102, packed_md5="bef4ecab320f06d8554ea6380940ec79"),
        IdxFile("t10k-labels-idx1-ubyte", (10000,), "15d484375f8d13e6eb1aabb0c3f46965",
                packed_size=5148, packed_md5="bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
# fmt: on
