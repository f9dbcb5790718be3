"""The commands `data list`, `data get` and `data verify`."""

from __future__ import annotations

import sys
from pathlib import Path

from mixup_inference.datasets import (
    EMBEDDED,
    FOLDER,
    SOURCES,
    Shape,
    check_name,
    data_root,
    load_dataset,
    shape_of,
)
from mixup_inference.progress import RichProgress
from mixup_inference.text import plain_lines


def print_list(root: Path | None) -> None:
    """All data sets by name, what is in them, and where they are."""
    place = data_root(root)
    rows = [(EMBEDDED, str(shape_of(EMBEDDED)), "embedded")]
    for name, source in SOURCES.items():
        found = source.place(place)
        rows.append((name, str(source.shape), str(found) if found else "not here yet"))
    rows.append((f"{FOLDER}PATH", "your own images, a folder a class", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, what, where in rows:
        _say(f"{name:<{widths[0]}}  {what:<{widths[1]}}  {where}".rstrip())
    _say(f"\nData root: {place}")


def get_one(name: str, root: Path | None) -> None:
    """Fetch a data set unless it is there, and verify it."""
    _load(name, root, download=True)


def verify_one(name: str, root: Path | None) -> None:
    """Read a data set and check it."""
    _load(name, root, download=False)


def _load(name: str, root: Path | None, *, download: bool) -> None:
    check_name(name)
    place = data_root(root)
    if download and name in SOURCES and SOURCES[name].place(place) is None:
        _say(f"Fetching {SOURCES[name].title} into {place}")
    data = load_dataset(name, root, download=download, progress=RichProgress())
    _say(f"{name}: {Shape.of(data)}")
    if name in SOURCES:
        _say(f"in {SOURCES[name].place(place)}; every file has its published MD5.")


def _say(text: str) -> None:
    """A line as it is, however narrow the terminal."""
    sys.stdout.write(f"{plain_lines(text)}\n")
    sys.stdout.flush()
