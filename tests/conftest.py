"""Shared fixtures: a small trained network on real digits, made once per test process."""

from __future__ import annotations

import importlib
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from mixup_inference import Pool, create_model, train
from mixup_inference.datasets import load_dataset, split
from mixup_inference.training import Recipe

settings.register_profile("house", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("house")
torch.set_num_threads(1)  # the tests run in two processes


def pytest_configure(config):
    """ART writes a file into the home folder when it is first imported: before workers collide."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and not (Path.home() / ".art" / "config.json").exists():
        with suppress(ImportError):
            importlib.import_module("art.config")


@pytest.fixture(scope="session")
def parts():
    digits = load_dataset("digits").train
    return split(digits, {"test": 200, "calibration": 200}, seed=1, rest="train")


@pytest.fixture(scope="session")
def trained(parts):
    """A mixup-trained network that is right on most test points.

    Trained in double precision: there the last bits, which differ between processors, do not grow
    into other weights, so every machine tests the same network.
    """
    model = create_model("small_cnn", 10, channels=1, width=8).double()
    recipe = Recipe(epochs=25, batch_size=64, lr=0.2, schedule="one-cycle")
    train(model, parts["train"].images, parts["train"].labels, recipe)
    return model.float()


@pytest.fixture(scope="session")
def pool(parts):
    return Pool(parts["train"].images, parts["train"].labels)


@pytest.fixture
def same_global_state():
    """Fails the test when it leaves any global random state different from how it was."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert str(states[2]) == str(np.random.get_state())  # noqa: NPY002
