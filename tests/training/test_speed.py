"""What makes training faster changes nothing else: the same weights as a loop written out."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixup_inference import create_model, train
from mixup_inference.attacks.threat_model import ThreatModel
from mixup_inference.datasets import random_order
from mixup_inference.draws import derive_seed, make_key
from mixup_inference.models.folding import Folded
from mixup_inference.training import Recipe, loop
from mixup_inference.training.objectives import Batch, Examples, mix_batch
from mixup_inference.training.speed import attack_target, channels_last

RECIPE = Recipe(objective="at", epochs=2, batch_size=60, lr=0.05, schedule="step", milestones=(),
                eps=0.1, step=0.03, steps=4)  # fmt: skip


def network(name="small_cnn", channels=1, **settings):
    return create_model(name, 10, channels=channels, **settings).double()


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


def attack(model, x, y, index, epoch):
    """PGD on the model in eval mode, written out; only its random start is the project's."""
    model.eval()
    key = make_key(derive_seed(0, "inner attack", epoch), "pgd start")
    image = ThreatModel("linf", RECIPE.eps).start(x, index, key)
    for _ in range(RECIPE.steps):
        image = image.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(model(image), y), image)
        image = image.detach() + RECIPE.step * gradient.sign()
        image = (x + (image - x).clamp(-RECIPE.eps, RECIPE.eps)).clamp(0, 1)
    model.train()
    return image


def plain(model, x, y, objective):
    """Training written out; only the order, the start and the ratios are the project's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RECIPE.lr, momentum=0.9)
    for epoch in range(RECIPE.epochs):
        order = random_order(len(y), seed=0, name=f"epoch {epoch}")
        for index in order.tensor_split(len(y) // RECIPE.batch_size):
            images, hot = x[index], functional.one_hot(y[index], 10).double()
            batch = Batch(images, y[index], index, epoch)
            halves = {"clean": images}
            if objective in ("at", "iat"):
                found = attack(model, images, y[index], index, epoch)
                halves = {"adversarial": found, "clean": images}
            rows = [(half, hot) for half in halves.values()]
            if objective in ("mixup", "iat"):
                made = [
                    mix_batch(Examples(half, hot, hot[:, 0]), batch.with_images(half), RECIPE, name)
                    for name, half in halves.items()
                ]
                rows = [(one.x, one.targets) for one in made]
            inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
            model.train()
            loss = -(targets * model(inputs).log_softmax(1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("objective", ["erm", "mixup", "at", "iat"])
def test_equals_a_loop_written_out(parts, objective, monkeypatch):
    x, y = parts["train"].pixels[:180].double(), parts["train"].labels[:180]
    victims = []
    monkeypatch.setattr(
        loop, "attack_target", lambda *a, **k: victims.append(attack_target(*a, **k)) or victims[-1]
    )
    ours = network(width=4)
    expected = plain(copy.deepcopy(ours), x, y, objective)
    train(ours, x, y, Recipe(**{**vars(RECIPE), "objective": objective}))
    assert [isinstance(v, Folded) for v in victims] == 2 * [objective in ("at", "iat")]
    torch.testing.assert_close(weights(ours), weights(expected), rtol=1e-10, atol=1e-10)


@contextmanager
def as_it_is(*_):
    yield


@pytest.mark.parametrize("name", ["resnet20", "fast_resnet"])
def test_a_folded_victim_and_the_memory_format_change_nothing(name, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 3, 16, 16, generator=generator).double()
    y = torch.arange(60) % 10
    fast, slow = network(name, channels=3), network(name, channels=3)
    slow.load_state_dict(fast.state_dict())
    recipe = Recipe(**{**vars(RECIPE), "batch_size": 20, "epochs": 1, "steps": 9})
    train(fast, x, y, recipe)
    monkeypatch.setattr(loop, "attack_target", lambda model, *_, **__: model)
    monkeypatch.setattr(loop, "channels_last", as_it_is)
    train(slow, x, y, recipe)
    torch.testing.assert_close(weights(fast), weights(slow), rtol=1e-10, atol=1e-10)


class Viewer(nn.Module):
    """``view`` does not take what convolutions give in channels-last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        return self.linear(self.layers(x).view(len(x), -1))


def test_a_model_that_needs_its_memory_format_trains(parts):
    model, x = Viewer(), parts["train"].pixels[:180].float()
    before = weights(model)
    with channels_last(model, x[:2]):
        assert model.layers[2].weight.is_contiguous()
    history = train(model, x, parts["train"].labels[:180], RECIPE)
    assert len(history) == 2
    assert not torch.equal(before, weights(model))


@pytest.mark.usefixtures("same_global_state")
def test_the_weights_are_laid_out_as_before(parts):
    model, x = network(width=4), parts["train"].pixels[:2].double()
    before = copy.deepcopy(model.state_dict())
    first, weight = (model.features[number][0].weight for number in (0, 1))
    strides = first.stride()

    def interrupted():
        with channels_last(model, x):
            assert weight.is_contiguous(memory_format=torch.channels_last)
            assert first.stride() == (9, 1, 3, 1)  # also with one channel
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert weight.is_contiguous()
    assert first.stride() == strides
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    last = network("fast_resnet")
    with channels_last(last, x):
        pass
    assert last.features[1][0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_watched_model_is_left_alone(parts):
    model, seen = network(width=4), []
    model.register_forward_hook(lambda *_: seen.append(1))
    x = parts["train"].pixels[:8].double()
    with channels_last(model, x):
        assert model.features[1][0].weight.is_contiguous()
    assert attack_target(model, x, images=10**6) is model
    assert not seen
