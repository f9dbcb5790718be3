from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from mixup_inference import InputError, create_model, from_pretrained, save_pretrained
from mixup_inference.evaluation import Accuracy
from mixup_inference.models import WEIGHTS
from mixup_inference.training import Recipe


@pytest.fixture
def model():
    return create_model("resnet20", 7, size=24, mean=(0.4, 0.5, 0.6), std=0.25, seed=3).eval()


def test_round_trip(model, tmp_path):
    folder = save_pretrained(
        model,
        tmp_path / "m",
        data="cifar10",
        recipe=Recipe(objective="iat", epochs=3),
        clean_accuracy=Accuracy(80, 100),
        note="a trial",
    )
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json"}
    for name in (folder, folder / WEIGHTS, str(folder)):
        loaded = from_pretrained(name)
        x = torch.rand(2, 3, 24, 24)
        assert torch.equal(loaded(x), model(x))
        assert not loaded.training
    card = loaded.card
    assert card == json.loads((folder / "config.json").read_text())
    assert card["architecture"] == {
        "name": "resnet20",
        "num_classes": 7,
        "channels": 3,
        "size": 24,
        "mean": [0.4, 0.5, 0.6],
        "std": 0.25,
    }
    assert card["objective"] == "iat"
    assert card["recipe"]["epochs"] == 3
    assert card["clean_accuracy"]["correct"] == 80
    assert card["data"] == "cifar10"
    assert card["note"] == "a trial"
    assert card["version"]
    assert card["hash"]


def test_only_what_can_be_built_again_is_saved(tmp_path):
    with pytest.raises(InputError, match="made with create_model"):
        save_pretrained(nn.Linear(2, 2), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_cannot_name_code_to_import(model, tmp_path):
    object.__setattr__(model, "config", {"name": "os:getcwd", "num_classes": 2})
    with pytest.raises(InputError, match="names an architecture that is not here"):
        save_pretrained(model, tmp_path)


def test_names_that_lead_nowhere(monkeypatch):
    for name in ("nowhere", "./no/where", "a/b/c", "runs/modle.safetensors"):
        with pytest.raises(InputError, match="there is no folder or file"):
            from_pretrained(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"install mixup-inference\[hub\]"):
        from_pretrained("someone/something")


def test_models_of_the_hub(model, tmp_path, monkeypatch):
    """The real huggingface_hub, offline, on a cache laid out as it does it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "models--someone--something"
    save_pretrained(model, cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    x = torch.rand(2, 3, 24, 24)
    assert torch.equal(from_pretrained("someone/something")(x), model(x))
    with pytest.raises(InputError, match="neither a folder here nor"):
        from_pretrained("someone/else")


def test_upload_is_left_to_the_hub(model, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []
    monkeypatch.setattr(hub, "create_repo", lambda *a, **k: calls.append(("create", a, k)))
    monkeypatch.setattr(hub, "upload_folder", lambda **k: calls.append(("upload", k)))
    save_pretrained(model, tmp_path / "m", repo_id="someone/something")
    assert [call[0] for call in calls] == ["create", "upload"]
    assert calls[1][1]["repo_id"] == "someone/something"
    assert calls[1][1]["folder_path"] == tmp_path / "m"


def test_half_the_space(model, tmp_path):
    """16 bits on disk, 32 in the model that comes back; what they cannot hold is not written."""
    save_pretrained(model, tmp_path / "full")
    save_pretrained(model, tmp_path / "half", half=True)
    back = from_pretrained(tmp_path / "half")
    for name, tensor in back.state_dict().items():
        was = model.state_dict()[name]
        assert tensor.dtype == was.dtype
        torch.testing.assert_close(tensor, was, rtol=1e-3, atol=1e-7)
    sizes = [(tmp_path / kind / "model.safetensors").stat().st_size for kind in ("half", "full")]
    assert sizes[0] < 0.7 * sizes[1]
    with torch.no_grad():
        next(model.parameters())[0] = 1e5
    with pytest.raises(InputError, match="16 bits cannot hold"):
        save_pretrained(model, tmp_path / "half", half=True)
    assert from_pretrained(tmp_path / "half")  # what was there is still there
