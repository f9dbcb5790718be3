"""What every data set that is not embedded offers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mixup_inference.datasets.splits import Dataset
from mixup_inference.progress import Progress


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
