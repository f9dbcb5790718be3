"""Models that are brought along, and what a run's store knows of them."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from mixup_inference import InputError, create_model, save_checkpoint, save_pretrained
from mixup_inference.datasets import load_dataset
from mixup_inference.experiments import Experiment, check_spec
from mixup_inference.experiments.models import load_model
from mixup_inference.experiments.spec import NetworkSpec
from mixup_inference.training import Recipe
from specs import tiny_spec

FACTORY = """
import torch
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def probabilities(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.Softmax(1))

def large(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1000))

class Strict(nn.Module):
    def forward(self, x):
        assert x.shape[-1] == 224, "Input height 8 does not match 224"

def half(num_classes):
    return build(num_classes).bfloat16()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_net", None)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def experiment(folder, defense="none", data=None, **model):
    """An experiment with one model, which has these settings."""
    spec = tiny_spec(
        data=data or {},
        network=None,
        training=None,
        attack=None,
        models={"mixup": None, "mine": model},
        rows=[{"title": "mine", "model": "mine", "defense": defense}],
    )
    return Experiment(check_spec(spec, allow_code=True), folder)


def own(factory):
    return {"name": f"own_net:{factory}"}


@pytest.mark.parametrize(
    ("factory", "defense", "words"),
    [
        ("probabilities", "none", "returns probabilities"),
        ("Strict", "none", "does not take images of 1 channels and 8x8 pixels .Input height"),
        ("large", "mi-ol", "predicts 1000 classes, the pool holds 10"),
    ],
)
def test_what_cannot_work_is_found_before_the_attack(here, factory, defense, words):
    with pytest.raises(InputError, match=words):
        experiment(here, defense, network=own(factory)).check()


def test_more_outputs_than_classes_are_fine_without_a_pool(here):
    experiment(here, network=own("large")).check()


def test_half_precision_models_are_measured_in_single(here):
    made = experiment(here, "mi-ol", network=own("half"))
    made.check()
    assert made.cell(made.spec.rows[0], made.spec.columns[0]).accuracy.total == 20


def test_a_checkpoint_of_ours_brings_its_normalisation(tmp_path):
    digits = load_dataset("digits").train
    model = create_model("small_cnn", 10, channels=1, mean=0.2, std=0.7).eval()
    save_pretrained(model, tmp_path / "m")
    x = digits.pixels[:4]
    for network in (None, NetworkSpec(name="small_cnn"), NetworkSpec(name="small_cnn", mean=0.2)):
        for weights in (tmp_path / "m", tmp_path / "m" / "model.safetensors"):
            assert torch.equal(load_model(network, str(weights), digits)(x), model(x))
    for wrong in (NetworkSpec(name="small_cnn", mean=0.3), NetworkSpec(name="resnet20")):
        with pytest.raises(InputError, match="says that its"):
            load_model(wrong, str(tmp_path / "m"), digits)


def test_a_model_tells_how_it_was_trained_if_it_knows(tmp_path):
    network = {"name": "small_cnn", "width": 4}
    here = experiment(tmp_path, network=network, objective="erm", epochs=3).models.training("mine")
    assert (here["network"], here["epochs"]) == ({"name": "small_cnn", "width": 4}, 3)
    model = create_model("small_cnn", 10, channels=1, width=4)
    save_pretrained(model, tmp_path / "m", recipe=Recipe(objective="erm", epochs=3))
    there = experiment(tmp_path, weights=str(tmp_path / "m")).models.training("mine")
    assert there["network"] == here["network"]
    assert {k: there[k] for k in there if here[k] != there[k]} == {}
    save_pretrained(model, tmp_path / "n")
    assert experiment(tmp_path, weights=str(tmp_path / "n")).models.training("mine") is None
    for rubbish in ({"epochs": "<b>"}, {"milestones": "many"}, {"depth": 3}, [1], "mixup", None):
        header = tmp_path / "n" / "model.safetensors"
        save_checkpoint(header, model, recipe=rubbish)
        bare = experiment(tmp_path, weights=str(header))
        assert bare.models.training("mine") is None


def test_changed_code_makes_another_model(here):
    model = {"network": own("build"), "objective": "erm", "epochs": 1}
    before = experiment(here, **model).models.identity("mine")
    assert experiment(here, **model).models.identity("mine") == before
    (here / "own_net.py").write_text(FACTORY.replace("nn.Flatten()", "nn.Flatten(), nn.Tanh()"))
    sys.modules.pop("own_net")
    assert experiment(here, **model).models.identity("mine") != before


def test_the_pool_is_part_of_what_determines_a_cell(here):
    made = experiment(here, "mi-ol", network=own("build"))
    before = made.models.identity("mine")
    other = experiment(here, "mi-ol", network=own("build"))
    train = other.data.points["train"]
    train.labels[100:] = train.labels[100:].flip(0)
    assert other.models.identity("mine") != before


def test_large_images_are_attacked_a_few_at_a_time(tmp_path):
    large = experiment(tmp_path, data={"size": 96, "channels": 3}, weights="x")
    assert large.data.batch_size == 1024 * 3 * 32 * 32 // (3 * 96 * 96)
