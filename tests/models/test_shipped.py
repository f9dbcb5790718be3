"""The trained models that ship: they load without anything else, and say what they are."""

from __future__ import annotations

import os

import pytest
import torch

from mixup_inference import evaluate, from_pretrained, load_dataset
from mixup_inference.cli import app
from mixup_inference.errors import InputError
from mixup_inference.experiments import load_spec
from mixup_inference.models import check_pretrained, shipped_models
from mixup_inference.utils.io import read_safetensors

NAMES = list(shipped_models())


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_and_says_what_it_is(name):
    model = from_pretrained(name)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    made = model.card["architecture"]
    images = torch.rand(2, made["channels"], made["size"], made["size"])
    assert model(images).shape == (2, made["num_classes"])
    assert model.card["data"] == name.partition("-")[0]
    assert model.card["clean_accuracy"]["total"] == (800 if name.startswith("digits") else 10_000)
    folder = shipped_models()[name]
    check_pretrained(folder)
    assert (folder / "model.safetensors").stat().st_size < 3_000_000


@pytest.mark.parametrize("name", NAMES)
def test_each_is_what_its_training_spec_trains(name):
    """Recipe and network of the card are those of the spec that is said to make it again."""
    card = from_pretrained(name).card
    data, _, trained = name.partition("-")
    spec = load_spec(f"{data}-training")
    assert card["recipe"] == spec.recipe(trained).header()
    assert card["architecture"]["name"] == spec.network.name


@pytest.mark.parametrize("name", NAMES)
def test_weights_hold_no_images(name):
    """Nothing but the network's own tensors."""
    folder = shipped_models()[name]
    tensors, _ = read_safetensors(folder / "model.safetensors")
    own = from_pretrained(name).state_dict()
    assert {key.removeprefix("model.") for key in tensors} == own.keys()


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card_for_people(name, capsys):
    app(["models", "show", name], result_action="return_value")
    card = capsys.readouterr().out
    clean = from_pretrained(name).card["clean_accuracy"]
    count = f"{clean['correct']:,} | {clean['total']:,}"
    for words in (f"# {name}", "must not be used for", count, "seed 0"):
        assert words in card


def test_the_list_of_models(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAMES[0]).mkdir()  # nobody asked for this one
    app(["models", "list"], result_action="return_value")
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == NAMES


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAMES[0]).mkdir()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        from_pretrained(NAMES[0])


def test_a_wrong_name_is_told_the_right_ones():
    with pytest.raises(InputError, match=NAMES[0]):
        from_pretrained("cifar10-mixpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_accuracy_on_the_real_data_if_it_is_there(name):
    if not os.environ.get("MIXUP_INFERENCE_DATA"):
        pytest.skip("no data root")
    card = from_pretrained(name).card
    test = load_dataset(card["data"]).test
    found = evaluate(from_pretrained(name), test.images, test.labels)
    assert abs(found.correct - card["clean_accuracy"]["correct"]) <= 3  # rounding, near-ties
