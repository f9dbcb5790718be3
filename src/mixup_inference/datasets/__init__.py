"""Data sets by name."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixup_inference.datasets.arrays import as_dataset, as_tensors
from mixup_inference.datasets.base import (
    Dataset,
    DatasetEntry,
    LabelledImages,
    Shape,
    Size,
    Source,
    load_digits,
)
from mixup_inference.datasets.cifar import CIFAR10, CIFAR100, CIFAR100_COARSE
from mixup_inference.datasets.fashion_mnist import FASHION_MNIST
from mixup_inference.datasets.image_folder import load_folder
from mixup_inference.datasets.splits import experiment_points, random_order, split
from mixup_inference.errors import InputError, MissingDataError, unknown_name
from mixup_inference.registry import Registry, is_code
from mixup_inference.utils.io import expanded
from mixup_inference.utils.progress import SILENT, Progress

#: The data sets that are fetched once and kept in the data root.
SOURCES: Mapping[str, Source] = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cifar100-coarse": CIFAR100_COARSE,
    "fashion-mnist": FASHION_MNIST,
}
EMBEDDED = "digits"
FOLDER = "folder:"

DATASETS: Registry[DatasetEntry] = Registry("data set", DatasetEntry)
DATASETS.add(DatasetEntry(EMBEDDED, load_digits))
for _name, _source in SOURCES.items():
    DATASETS.add(DatasetEntry(_name, _source))


def check_name(name: str) -> str:
    """A name that ``load_dataset`` takes: a known one, folder:PATH or package.module:function."""
    if name == FOLDER:
        raise InputError("folder: needs a path, as in folder:my-images.")
    if not (name.startswith(FOLDER) or is_code(name) or name in DATASETS):
        raise unknown_name("data set", name, (*DATASETS, "folder:PATH"))
    return name


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets are kept: ``root``, $MIXUP_INFERENCE_DATA, or the user's cache folder."""
    from platformdirs import user_cache_path  # noqa: PLC0415 (only who needs it pays for it)

    named = root or os.environ.get("MIXUP_INFERENCE_DATA")
    return expanded(named) if named else user_cache_path("mixup-inference", appauthor=False)


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    size: Size = None,
    channels: int | None = None,
    download: bool = True,
    progress: Progress = SILENT,
) -> Dataset:
    """The data set of this name: digits, cifar10, cifar100, fashion-mnist, ... or folder:PATH.

    It is looked for in ``data_root(root)`` and, if it is not there, fetched. ``size`` (a side, or
    height and width) resizes the images; ``channels`` makes them grey (1) or colour (3). A data set
    of your own is a function in ``DATASETS``: ``@DATASETS.register("name")``, or
    ``DATASETS.load("package.module:function")``.
    """
    check_name(name)
    if name.startswith(FOLDER):
        path = expanded(name.removeprefix(FOLDER))
        return load_folder(path, size=size, channels=channels, progress=progress)
    source = DATASETS[name].source
    if callable(source):
        data = as_dataset(source(), what=name)
    else:
        place = data_root(root)
        try:
            data = source.load(place)
        except MissingDataError:
            if not download or place.is_file():
                raise
            logging.getLogger(__name__).info("fetching %s into %s", source.title, place)
            source.download(place, progress)
            data = source.load(place)
    return data.fitted(size=size, channels=channels)


def shape_of(name: str, **options: Any) -> Shape:
    """The shape of a data set, without reading those that would be downloaded."""
    if name not in SOURCES:
        return Shape.of(load_dataset(name, **options))
    shape = SOURCES[name].shape
    size, channels = options.get("size"), options.get("channels")
    side = (size, size) if isinstance(size, int) else size
    return replace(shape, size=side or shape.size, channels=channels or shape.channels)


__all__ = [
    "DATASETS",
    "EMBEDDED",
    "FOLDER",
    "SOURCES",
    "Dataset",
    "DatasetEntry",
    "LabelledImages",
    "Shape",
    "Source",
    "as_dataset",
    "as_tensors",
    "check_name",
    "data_root",
    "experiment_points",
    "load_dataset",
    "random_order",
    "shape_of",
    "split",
]
