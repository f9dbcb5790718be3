"""Manifold mixup: which layers, and that hidden states are mixed there and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixup_inference import InputError, create_model, train
from mixup_inference.models import NETWORKS
from mixup_inference.training import OBJECTIVES, Batch, Recipe
from mixup_inference.training.manifold import HiddenExamples, hidden_layers
from mixup_inference.training.objectives import draw_pairs, erm, mix_batch

CLASSES, COUNT = 4, 12
X = torch.rand(COUNT, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(COUNT) % CLASSES
RECIPE = Recipe(objective="manifold-mixup")


def batch(number):
    return Batch(X, Y, torch.arange(COUNT) + 100 * number, epoch=1)


def examples(model, number):
    return OBJECTIVES["manifold-mixup"].function(model, batch(number), RECIPE, CLASSES)


def with_layer(model, number):
    """The first batch at which a layer is drawn; 0 is the input."""
    layers = [None, *hidden_layers(model)]
    for seen in range(100):
        e = examples(model, seen)
        if getattr(e, "layer", None) is layers[number]:
            return e, draw_pairs(batch(seen), RECIPE, "manifold")
    raise AssertionError


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_two_layers_that_run_once(name):
    model = create_model(name, CLASSES).double().eval()
    layers = hidden_layers(model)
    assert len(layers) == 2
    parts = dict(model.named_modules())
    names = [next(n for n, part in parts.items() if part is layer) for layer in layers]
    assert names in (["features.0", "features.1"], ["layer1", "layer2"])
    for number in (1, 2):
        e, _ = with_layer(model, number)
        unmixed = HiddenExamples(e.x, e.targets, e.weights, e.layer, lambda h: h)
        torch.testing.assert_close(unmixed.logits(model), model(X))
        assert not torch.allclose(e.logits(model), model(X))
        assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_resnet_is_mixed_at_one_layer_written_out(number):
    model = create_model("resnet20", CLASSES).double()
    e, pairs = with_layer(model, number)
    lam = pairs.lam[:, None, None, None]

    def at(layer, h):
        return lam * h + (1 - lam) * h[pairs.partner] if layer == number else h

    def forward():
        h = (at(0, X) - model.mean) / model.std
        h = at(1, model.layer1(functional.relu(model.bn1(model.conv1(h)))))
        h = model.layer3(at(2, model.layer2(h)))
        return model.linear(h.mean((2, 3)))

    model.train()
    expected = forward()
    logits = e.logits(model)
    torch.testing.assert_close(logits, expected)
    hot = functional.one_hot(Y, CLASSES).double()
    targets = pairs.lam[:, None] * hot + (1 - pairs.lam)[:, None] * hot[pairs.partner]
    torch.testing.assert_close(e.targets, targets)
    weight = model.conv1.weight
    found, wanted = (torch.autograd.grad(e.loss(out), weight)[0] for out in (logits, expected))
    torch.testing.assert_close(found, wanted)


def test_on_a_linear_network_the_layer_does_not_matter():
    sizes = (3 * 16 * 16, 9, 8, 7, CLASSES)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(nn.Flatten(), *layers).double()
    assert hidden_layers(model) == layers[:2]
    for number in range(3):
        e, pairs = with_layer(model, number)
        logits, lam = model(X), pairs.lam[:, None]
        torch.testing.assert_close(
            e.logits(model), lam * logits + (1 - lam) * logits[pairs.partner]
        )


def test_blocks_inside_blocks():
    hidden, last = nn.Sequential(nn.Linear(768, 5), nn.ReLU()), nn.Linear(5, CLASSES)
    assert hidden_layers(nn.Sequential(nn.Flatten(), hidden, last)) == [hidden]
    small = create_model("small_cnn", CLASSES)
    around = nn.Sequential(small, nn.BatchNorm1d(CLASSES), nn.Linear(CLASSES, CLASSES))
    assert hidden_layers(around) == [*small.features[:2]]


def test_layers_are_drawn_evenly_and_the_input_is_plain_mixup():
    model = create_model("small_cnn", CLASSES, width=2).double()
    layers = [None, *hidden_layers(model)]
    drawn = [layers.index(getattr(examples(model, n), "layer", None)) for n in range(300)]
    assert all(70 < drawn.count(number) < 130 for number in range(3))
    first = drawn.index(0)
    plain = erm(model, batch(first), RECIPE, CLASSES)
    expected = mix_batch(plain, batch(first), RECIPE, "manifold")
    assert torch.equal(examples(model, first).x, expected.x)


class Shared(nn.Module):
    """Its first layer runs twice."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(768, 768), nn.Linear(768, CLASSES)

    def forward(self, x):
        return self.two(self.one(self.one(x.flatten(1))))


class Pair(nn.Module):
    """Its first layer returns two tensors."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LSTM(768, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.two(self.one(x.flatten(1))[0])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(768, CLASSES)), "no hidden layer"),
        (Shared(), "ran 2 times"),
        (Pair(), "one tensor with a row for each image"),
    ],
)
def test_networks_that_do_not_fit_are_refused_in_words(model, words):
    with pytest.raises(InputError, match=words):
        train(model, X, Y, Recipe(objective="manifold-mixup", epochs=9, batch_size=6))
    assert not any(part._forward_hooks for part in model.modules())
