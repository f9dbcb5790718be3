from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mixup_inference import InputError, create_model, load_checkpoint, save_checkpoint
from mixup_inference.models import MODELS, load_weights
from mixup_inference.models.registry import closest_model


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [  # from He et al. (2016), Table 6, and from the published checkpoint of the paper
        ("resnet20", 0.27),
        ("resnet32", 0.46),
        ("resnet44", 0.66),
        ("resnet56", 0.85),
        ("preact_resnet18", 11.17),
        ("official_resnet50", 4.75),
        ("fast_resnet", 0.76),
    ],
)
def test_sizes_are_the_published_ones(name, millions):
    with torch.device("meta"):
        assert parameters(MODELS[name](classes=10)) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_runs_and_normalises_inside(name):
    x = torch.rand(2, 3, 32, 32)
    plain = create_model(name, 7, mean=0.0, std=1.0).eval()
    scaled = create_model(name, 7, mean=(0.4, 0.5, 0.6), std=[0.1, 0.2, 0.3]).eval()
    assert plain(x).shape == (2, 7)
    inside = (x - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.1, 0.2, 0.3]).view(
        3, 1, 1
    )
    torch.testing.assert_close(scaled(x), plain(inside))
    assert not any("mean" in key and "running" not in key for key in plain.state_dict())


def test_normalisation_travels_with_the_weights(tmp_path):
    model = create_model("resnet20", 10, mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3)).eval()
    save_checkpoint(tmp_path / "m.safetensors", model)
    loaded, _ = load_checkpoint(tmp_path / "m.safetensors")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(x), model(x))


def test_the_official_network_has_the_published_parameter_names():
    """Spot checks against the published checkpoint's list of 290 entries."""
    with torch.device("meta"):
        state = MODELS["official_resnet50"](classes=10).state_dict()
    assert len(state) == 290
    shapes = {
        "conv1.weight": (64, 3, 5, 5),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer3.0.downsample.1.running_var": (256,),
        "layer3.4.bn3.num_batches_tracked": (),
        "fc_dense.weight": (10, 256),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert not any(key.startswith("layer1.0.downsample") for key in state)


def test_option_a_shortcut_has_no_weights_and_keeps_every_other_pixel():
    block = MODELS["resnet20"](classes=2).eval().layer2[0]
    for weight in (block.conv1.weight, block.conv2.weight):
        nn.init.zeros_(weight)
    x = torch.rand(1, 16, 8, 8)
    out = block(x).detach()
    assert out.shape == (1, 32, 4, 4)
    torch.testing.assert_close(out[:, 8:24], x[:, :, ::2, ::2])
    assert float(out[:, :8].abs().sum() + out[:, 24:].abs().sum()) == 0


@pytest.fixture
def source():
    return create_model("resnet20", 10, seed=5)


@pytest.mark.parametrize("prefix", ["", "module.", "module.model.", "_orig_mod."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_other_peoples_files_load(tmp_path, source, prefix, wrapper, kind):
    path = tmp_path / "weights"
    state = {
        prefix + name: tensor
        for name, tensor in source.state_dict().items()
        if not name.endswith("num_batches_tracked")  # as in files of old torch versions
    }
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, path)
    model = create_model("resnet20", 10)
    load_weights(model, path)
    assert torch.equal(model.linear.weight, source.linear.weight)


def test_our_own_files_load_too(tmp_path, source):
    save_checkpoint(tmp_path / "m", source)
    model = create_model("resnet20", 10)
    load_weights(model, tmp_path / "m")
    assert torch.equal(model.linear.weight, source.linear.weight)


def test_a_mismatch_lists_what_differs_and_names_the_nearest(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "w")
    with pytest.raises(InputError, match=r"and \d+ more.*look like those of 'resnet20'"):
        load_weights(create_model("resnet32", 10), tmp_path / "w")
    with pytest.raises(InputError, match=r"of another shape \['linear.bias', 'linear.weight'\]"):
        load_weights(create_model("resnet20", 100), tmp_path / "w")
    assert closest_model(nn.Linear(3, 3).state_dict()) is None


class Bomb:
    def __reduce__(self):
        return (print, ("executed!",))


def test_files_that_hold_something_else(tmp_path, capsys):
    path, model = tmp_path / "w", create_model("resnet20", 10)
    for content, words in (
        ({"state_dict": {"a": Bomb()}}, "holds no named tensors"),
        ([1, 2], "holds no state_dict; saw list"),
        ({"epoch": 3}, "holds no named tensors"),
    ):
        torch.save(content, path)
        with pytest.raises(InputError, match=words):
            load_weights(model, path)
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(InputError, match="neither safetensors nor a torch file"):
        load_weights(model, path)
    with pytest.raises(InputError, match="there is no file"):
        load_weights(model, tmp_path / "nowhere")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mean": (0.1, 0.2)}, "mean must be one number or 3"),
        ({"std": 0.0}, "std must be positive"),
        ({"channels": 0}, "channels must be at least 1"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        create_model("resnet20", 10, **settings)
