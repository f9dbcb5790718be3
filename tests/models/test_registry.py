"""Every network of the registry keeps the contract, those of a user's own too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import InputError, create_model, load_checkpoint, save_checkpoint
from mixup_inference.models import NETWORKS, DummyClassifier, NetworkEntry
from mixup_inference.models.registry import closest_model


class Own(nn.Module):
    """Takes its classes as ``num_classes``, and a setting."""

    def __init__(self, num_classes, channels, width=2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, num_classes),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


@pytest.fixture
def own():
    NETWORKS.register("own", fixed={"width": 3})(Own)
    yield
    NETWORKS.remove("own")


@pytest.mark.parametrize("name", [*NETWORKS, "own"])
@pytest.mark.usefixtures("own", "same_global_state")
def test_contract(name, tmp_path):
    assert isinstance(NETWORKS[name], NetworkEntry)
    model = create_model(name, 7, channels=1, seed=3).eval()
    x = torch.rand(3, 1, 16, 12, generator=torch.Generator().manual_seed(0))
    out = model(x)
    assert out.shape == (3, 7)
    torch.testing.assert_close(model(x[:1]), out[:1])  # an answer does not depend on the batch
    same, other = (create_model(name, 7, channels=1, seed=seed).eval() for seed in (3, 4))
    assert torch.equal(same(x), out)
    assert not torch.equal(other(x), out)
    save_checkpoint(tmp_path / "m", model)
    again, header = load_checkpoint(tmp_path / "m")
    assert header["architecture"]["name"] == name
    assert torch.equal(again(x), out)
    assert closest_model(create_model(name, 7).state_dict()) == name
    model.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(InputError, match="does not take"):
        create_model(name, 7, no_such_setting=1)


@pytest.mark.usefixtures("own")
def test_settings_of_a_name_are_fixed():
    assert NETWORKS["resnet20"].settings == {"mean", "std"}
    assert NETWORKS["small_cnn"].settings == {"mean", "std", "width"}
    assert NETWORKS["own"].settings == set()
    with pytest.raises(InputError, match="depth"):
        create_model("resnet20", 10, depth=56)
    with pytest.raises(InputError, match="depth must be 6n"):
        NETWORKS["resnet20"].factory(classes=2, depth=21)
    with pytest.raises(InputError, match="unknown network 'small_cn'; did you mean 'small_cnn'"):
        create_model("small_cn", 10)
    with pytest.raises(InputError, match="--allow-code"):
        create_model("their.models:build", 10)


def test_the_dummy_classifier():
    x = torch.stack([torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.5)])
    assert DummyClassifier(3)(x).tolist() == [[0, 0, 0], [0, 0.5, 1]]
    assert not DummyClassifier(3, slope=0)(x).any()
    assert DummyClassifier(3)(x.double()).dtype == torch.float64
