from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file

from mixup_inference import InputError, create_model, load_checkpoint, save_checkpoint
from mixup_inference.models import load_weights
from mixup_inference.utils.io import write_tensors


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_round_trip(path):
    model = create_model("small_cnn", 4, channels=3, width=5, seed=3)
    save_checkpoint(path, model, note="hello")
    loaded, header = load_checkpoint(path)
    assert header["note"] == "hello"
    assert header["architecture"] == model.config
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded(x), model.eval()(x))


@pytest.mark.usefixtures("same_global_state")
def test_fresh_weights_depend_on_the_seed_only():
    a, b, c = (create_model("small_cnn", 4, seed=s) for s in (0, 0, 1))
    assert torch.equal(a.classifier.weight, b.classifier.weight)
    assert not torch.equal(a.classifier.weight, c.classifier.weight)


class Bomb:
    def __reduce__(self):
        return (print, ("executed!",))


def test_foreign_and_damaged_files_are_refused_without_running_anything(path, capsys):
    model = create_model("small_cnn", 4)
    save_checkpoint(path, model)
    whole = path.read_bytes()
    cases = {
        "truncated": (whole[: len(whole) // 2], "not a readable safetensors file"),
        "empty": (b"", "not a readable safetensors file"),
        "pickle": (pickle.dumps(Bomb()), "not a readable safetensors file"),
        "text": (b"<html>not found</html>" * 9, "not a readable safetensors file"),
    }
    for content, words in cases.values():
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            load_checkpoint(path)
    torch.save({"weights": Bomb()}, path)
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_checkpoint(path)
    assert "executed" not in capsys.readouterr().out
    with pytest.raises(InputError, match="there is no file"):
        load_checkpoint(path.with_name("nowhere.safetensors"))


def test_strangers_safetensors_are_named_as_such(path):
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="not written by mixup-inference"):
        load_checkpoint(path)
    write_tensors(path, {"a": torch.zeros(2)}, {"format": 99})
    with pytest.raises(InputError, match="format 99"):
        load_checkpoint(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"json": "{"})
    with pytest.raises(InputError, match="not a readable"):
        load_checkpoint(path)


def test_weights_of_another_network_are_listed(path):
    save_checkpoint(path, create_model("small_cnn", 4))
    with pytest.raises(InputError, match=r"of another shape \['classifier.bias'"):
        load_weights(create_model("small_cnn", 5), path)
    with pytest.raises(InputError, match=r"missing \['bias', 'weight'\]"):
        load_weights(torch.nn.Linear(2, 2), path)
    save_checkpoint(path, torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="does not say which architecture"):
        load_checkpoint(path)


def test_tied_weights_and_strange_headers(path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_checkpoint(path, model)
    load_weights(model, path)
    write_tensors(path, {"a": torch.zeros(2)}, {"format": 1, "architecture": {"foo": 1}})
    with pytest.raises(InputError, match="names an architecture"):
        load_checkpoint(path)


def test_unknown_models():
    with pytest.raises(InputError, match="did you mean 'small_cnn'"):
        create_model("smal_cnn", 2)
    with pytest.raises(InputError, match="does not take"):
        create_model("small_cnn", 2, depth=3)


def test_a_failed_write_leaves_no_file_behind(path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, create_model("small_cnn", 4))
    assert list(path.parent.iterdir()) == []


def test_a_changed_weight_is_noticed(path):
    save_checkpoint(path, create_model("small_cnn", 4))
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    for load in (load_checkpoint, lambda p: load_weights(create_model("small_cnn", 4), p)):
        with pytest.raises(InputError, match="do not match the hash"):
            load(path)


class Wrap(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    "stored",
    [
        lambda w: w,
        lambda w: {f"module.{k}": v for k, v in w.items()},
        lambda w: {"model": {"state_dict": w}},
        lambda w: {**{f"net.{k}": v for k, v in w.items()}, "criterion.weight": torch.ones(3)},
    ],
    ids=["plain", "prefix", "two wrappers", "beside a loss"],
)
@pytest.mark.parametrize("build", [Wrap, lambda: torch.nn.Linear(2, 2)], ids=["wrap", "linear"])
def test_prefixes_are_taken_off_only_where_that_helps(path, stored, build):
    source, target = build(), build()
    torch.save(stored(source.state_dict()), path)
    load_weights(target, path)
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)


@pytest.mark.parametrize(
    "weight",
    [torch.full((2, 2), float("nan")), torch.ones(2, 2).char(), torch.eye(2).to_sparse()],
    ids=["nan", "int8", "sparse"],
)
def test_weights_that_are_not_usable(path, weight):
    torch.save({"weight": weight, "bias": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="weight in"):
        load_weights(torch.nn.Linear(2, 2), path)


@pytest.mark.parametrize(
    "lie", [{"num_classes": -1}, {"num_classes": 10**12}, {"mean": "abc"}, {"seed": "x"}]
)
def test_headers_that_lie(path, lie):
    model = create_model("small_cnn", 4)
    object.__setattr__(model, "config", model.config | lie)
    save_checkpoint(path, model)
    with pytest.raises(InputError, match=r"names an architecture|does not fit the model"):
        load_checkpoint(path)
