"""Where an experiment takes its images from."""

from __future__ import annotations

import pytest
import torch

from mixup_inference.datasets import Dataset, load_dataset
from mixup_inference.errors import InputError
from mixup_inference.evaluation import Experiment, experiment, parse_spec

SPEC = """
name = "tiny"
title = "A tiny experiment"
draws = 2

[data]
name = "digits"
test = 20
pool = "POOL"

[network]
name = "small_cnn"

[models.mixup]
objective = "mixup"

[[rows]]
title = "Mixup + MI-OL"
model = "mixup"
defense = "mi-ol"
"""


@pytest.fixture
def with_a_test_part(monkeypatch):
    whole = load_dataset("digits").train
    parted = Dataset(whole.take(torch.arange(1000)), whole.take(torch.arange(1000, len(whole))))
    monkeypatch.setattr(experiment, "load_dataset", lambda *_, **__: parted)
    return parted


def test_the_pool_is_the_training_images_or_all_test_images(with_a_test_part, tmp_path):
    train, test = (
        Experiment(parse_spec(SPEC.replace("POOL", part)), tmp_path) for part in ("train", "test")
    )
    assert torch.equal(train.pool.images, with_a_test_part.train.images)
    assert torch.equal(test.pool.images, with_a_test_part.test.images)
    assert train.model_identity("mixup") != test.model_identity("mixup")
    for part in ("test", "train"):
        assert torch.equal(train.points[part].images, test.points[part].images)


def test_without_a_test_part_there_is_no_such_pool(tmp_path):
    with pytest.raises(InputError, match="digits has no test part to take the pool from"):
        Experiment(parse_spec(SPEC.replace("POOL", "test")), tmp_path).check()
