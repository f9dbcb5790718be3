"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from mixup_inference.datasets.cifar import CIFAR10, CIFAR100
from mixup_inference.datasets.digits import load_digits
from mixup_inference.datasets.splits import (
    Dataset,
    LabelledImages,
    experiment_points,
    random_order,
    split,
)
from mixup_inference.errors import unknown_name

DATASETS: Mapping[str, Callable[[Path], Dataset]] = {
    "digits": lambda _: Dataset(load_digits()),
    "cifar10": CIFAR10.load,
    "cifar100": CIFAR100.load,
}


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets are looked for: ``root``, $MIXUP_INFERENCE_DATA, or ./data."""
    return Path(root or os.environ.get("MIXUP_INFERENCE_DATA") or "data")


def load_dataset(name: str, root: str | Path | None = None) -> Dataset:
    """The data set of this name, from ``data_root(root)`` unless it is embedded."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name](data_root(root))


__all__ = [
    "DATASETS",
    "Dataset",
    "LabelledImages",
    "data_root",
    "experiment_points",
    "load_dataset",
    "random_order",
    "split",
]
