from __future__ import annotations

import pytest
import torch

from mixup_inference import InputError
from mixup_inference.datasets import load_dataset, random_order, split


def test_digits_are_all_there():
    data = load_dataset("digits")
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.classes == 10
    assert float(data.pixels.min()) == 0
    assert float(data.pixels.max()) == 1
    assert torch.bincount(data.labels).min() > 170


def test_splits_are_disjoint_complete_seeded_and_random():
    data = load_dataset("digits")
    sizes = {"test": 500, "tuning": 200, "calibration": 100}
    parts = split(data, sizes, seed=0, rest="train")
    assert {name: len(part) for name, part in parts.items()} == sizes | {"train": 997}
    together = torch.cat([part.index for part in parts.values()])
    assert sorted(together.tolist()) == list(range(1797))
    for part in parts.values():
        assert torch.equal(part.images, data.images[part.index])
        assert torch.equal(part.labels, data.labels[part.index])
    again, other = (split(data, sizes, seed=s, rest="train")["test"] for s in (0, 1))
    assert torch.equal(again.index, parts["test"].index)
    assert not torch.equal(other.index, parts["test"].index)
    assert 0.45 < parts["test"].index.double().mean() / 1797 < 0.55


def test_random_order_is_a_permutation():
    assert sorted(random_order(1000, seed=3, name="x").tolist()) == list(range(1000))


def test_errors():
    with pytest.raises(InputError, match="ask for 1797 points"):
        split(load_dataset("digits"), {"test": 1797}, seed=0, rest="train")
    with pytest.raises(InputError, match="did you mean 'digits'"):
        load_dataset("digit")
