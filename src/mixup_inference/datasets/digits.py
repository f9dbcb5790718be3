"""scikit-learn's embedded digits: 1,797 real 8x8 grey images of handwritten digits."""

from __future__ import annotations

import torch

from mixup_inference.datasets.splits import LabelledImages


def load_digits() -> LabelledImages:
    """All 1,797 digits, from the UCI optical recognition set, with pixels in [0, 1].

    The source has 17 grey levels, 0 to 16, which are divided by 16.
    """
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow to import)

    bunch = load()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    names = tuple(str(name) for name in bunch.target_names)
    return LabelledImages(images, labels, torch.arange(len(labels)), names)
