"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixup_inference.datasets.digits import load_digits
from mixup_inference.datasets.splits import LabelledImages, random_order, split
from mixup_inference.errors import unknown_name

DATASETS: Mapping[str, Callable[[], LabelledImages]] = {"digits": load_digits}


def load_dataset(name: str) -> LabelledImages:
    """The data set of this name."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]()


__all__ = ["DATASETS", "LabelledImages", "load_dataset", "random_order", "split"]
