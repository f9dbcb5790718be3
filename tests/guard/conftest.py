"""A guard around a network that knows a little about ten kinds of noise."""

from __future__ import annotations

import pytest
import torch

from mixup_inference import Pool, create_model, load_dataset, train
from mixup_inference.guard import Guard
from mixup_inference.training import Recipe


def images_of(labels, *, seed):
    """Noise with a bright column, which is where the label is."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(len(labels), 1, 8, 10, generator=generator) * 0.6
    x[torch.arange(len(labels)), :, :, labels] += 0.3
    return (x * 255).to(torch.uint8)


class Columns(torch.nn.Module):
    """Logits: how bright each column is."""

    def forward(self, x):
        return 30 * x.mean((1, 2))


@pytest.fixture(scope="session")
def points():
    labels = torch.arange(400) % 10
    return images_of(labels, seed=0), labels


@pytest.fixture(scope="session")
def pool():
    labels = torch.arange(100) % 10
    return Pool(images_of(labels, seed=1), labels)


@pytest.fixture(scope="session")
def guard(points, pool):
    return Guard.fit(Columns(), pool, *points, draws=8, engine="eager")


@pytest.fixture(scope="session")
def network():
    return create_model("small_cnn", 10, channels=1, width=4, seed=3).eval()


@pytest.fixture(scope="session")
def saved(network, pool, points, tmp_path_factory):
    """A guard of a network of the registry, and its folder."""
    guard = Guard.fit(network, pool, *points, draws=6, data="noise")
    return guard, guard.save(tmp_path_factory.mktemp("guard") / "saved")


@pytest.fixture(scope="session")
def digits():
    """A guard of a network that was trained on digits, and test points."""
    data = load_dataset("digits").train
    model = create_model("small_cnn", 10, channels=1, width=12)
    images, labels = data.images[600:], data.labels[600:]
    recipe = Recipe(objective="mixup", epochs=15, lr=0.2, ratio="batch", schedule="one-cycle")
    train(model, images, labels, recipe)
    clean = data.images[200:600], data.labels[200:600]
    guard = Guard.fit(model, Pool(images, labels), *clean, per_class=20, draws=12, data="digits")
    return guard, data.images[:200], data.labels[:200]
