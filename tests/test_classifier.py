"""How many images a network sees at once."""

from __future__ import annotations

import torch
from torch import nn

from mixup_inference import create_model, pgd
from mixup_inference.models.call import batch_for, count_passes

X = torch.rand(40, 3, 32, 32)


def test_networks_with_large_outputs_see_fewer_images():
    assert batch_for(X, create_model("small_cnn", 10, channels=3)) == 64
    assert batch_for(X, create_model("resnet20", 10, channels=3)) == 64
    wide = nn.Sequential(nn.Conv2d(3, 160, 3, padding=1), nn.AvgPool2d(16), nn.Flatten())
    assert batch_for(X, wide) == 25
    assert batch_for(X[..., :16, :16], wide) == 102
    assert batch_for(X, nn.Flatten()) == 64


def test_looking_leaves_no_trace():
    """No pass is counted, no statistics move, no random numbers are used, no hooks stay."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.AvgPool2d(30), nn.Flatten()
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with count_passes(model) as passes:
        first = batch_for(X, model)
        assert batch_for(X, model) == first
    assert passes.forward == 0
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model[0]._forward_hooks


class Pair(nn.Conv2d):
    def forward(self, x):
        return super().forward(x), x


class First(nn.Module):
    def forward(self, pair):
        return pair[0].mean((2, 3))


class NotAlone(nn.Module):
    """Cannot do with one image."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3)).squeeze().log_softmax(1)


def test_models_that_one_image_does_not_fit_are_left_alone():
    for model in (nn.Sequential(Pair(3, 5, 3), First()), NotAlone(), NotAlone().double()):
        assert batch_for(X, model) == 64
    assert pgd(NotAlone(), X, torch.zeros(40, dtype=torch.long), eps=0.1, step=0.1, steps=1).shape
