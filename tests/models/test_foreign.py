from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from mixup_inference import InputError, train
from mixup_inference.models import Normalized, import_model
from mixup_inference.training import Recipe

MODULE = """
from torch import nn

def build(num_classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Linear(width, num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))

def any(**settings):
    return nn.Linear(1, settings["num_classes"])

ready = nn.Linear(2, 2)
number = 3

def text():
    return "no module"

def fails():
    raise RuntimeError("out of luck")

def needs(something):
    return nn.Linear(1, something)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("their_models", None)


@pytest.mark.usefixtures("here")
def test_factories_are_found_in_the_working_folder():
    path = list(sys.path)
    assert import_model("their_models:build", 5)[2].out_features == 5
    assert import_model("their_models:build", 5, width=7)[1].out_features == 7
    assert import_model("their_models:fixed", 5)[1].out_features == 4
    assert import_model("their_models:any", 5).out_features == 5
    assert not import_model("their_models:ready", 5).training
    assert sys.path == path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("their_model:build", "No module named 'their_model'"),
        ("their_models:biuld", "has no attribute 'biuld'"),
        ("their_models:number", "TypeError"),
        ("their_models:text", "must return an nn.Module; it returned str"),
        ("their_models:fails", "RuntimeError: out of luck"),
        ("their_models:needs", "TypeError"),
        ("their_models:", "cannot import the network"),
    ],
)
def test_what_cannot_be_built_is_said(name, words):
    with pytest.raises(InputError, match=words):
        import_model(name, 5)


def test_normalisation_comes_first():
    model = Normalized(nn.Flatten(), channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    x = torch.rand(2, 3, 1, 1)
    by_hand = (x.flatten(1) - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(model(x), by_hand)


def test_outputs_that_carry_logits_pass_through():
    class Theirs(nn.Module):
        def forward(self, x):
            return type("Output", (), {"logits": x.flatten(1)})()

    assert Normalized(Theirs(), mean=0.0, std=1.0)(torch.rand(2, 3, 2, 2)).shape == (2, 12)


def test_a_wrapped_model_trains_as_the_bare_one_does():
    """Batch norm inside must see training mode."""
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    model = Normalized(net, channels=1, mean=0.5, std=0.5)
    x, y = torch.rand(16, 1, 2, 2), torch.arange(16) % 2
    train(model, x, y, Recipe(objective="erm", epochs=1, batch_size=8))
    assert net[1].num_batches_tracked == 2
    assert net[1].running_mean.abs().sum() > 0


def test_training_understands_outputs_that_carry_logits(tmp_path):
    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = object()  # as Hugging Face's models have one
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return type("Output", (), {"logits": self.head(x.flatten(1))})()

    x, y = torch.rand(16, 1, 2, 2), torch.arange(16) % 2
    recipe = Recipe(objective="mixup", epochs=1, batch_size=8)
    train(Theirs(), list(zip(x, y, strict=True)), recipe, folder=tmp_path)


def test_means_from_arrays_and_nonsense():
    Normalized(nn.Flatten(), mean=torch.tensor([0.1, 0.2, 0.3]), std=np.ones(3))
    for wrong in ("abc", float("nan"), ["a"], (0.1, 0.2)):
        with pytest.raises(InputError, match="mean must be"):
            Normalized(nn.Flatten(), mean=wrong, std=1.0)
