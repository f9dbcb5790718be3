"""The commands `data list`, `data get` and `data verify`."""

from __future__ import annotations

from pathlib import Path

from mixup_inference.cli.lines import say, say_columns
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


def print_list(root: Path | None) -> None:
    """All data sets by name, what is in them, and where they are."""
    place = data_root(root)
    rows = [(EMBEDDED, str(shape_of(EMBEDDED)), "embedded")]
    for name, source in SOURCES.items():
        found = source.place(place)
        rows.append((name, str(source.shape), str(found) if found else "not here yet"))
    rows.append((f"{FOLDER}PATH", "your own images, a folder a class", ""))
    say_columns(rows)
    say(f"\nData root: {place}")


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
        say(f"Fetching {SOURCES[name].title} into {place}")
    data = load_dataset(name, root, download=download, progress=RichProgress())
    say(f"{name}: {Shape.of(data)}")
    if name in SOURCES:
        say(f"in {SOURCES[name].place(place)}; every file has its published MD5.")
