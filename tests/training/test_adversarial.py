"""TRADES, fast AT and free AT: their formulas, peers' versions of them, and a loop written out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from art.defences.trainer import AdversarialTrainerTRADESPyTorch
from art.estimators.classification import PyTorchClassifier
from torch import nn
from torch.nn import functional

from mixup_inference import create_model, train
from mixup_inference.attacks.threat_model import ThreatModel
from mixup_inference.datasets import random_order
from mixup_inference.draws import Draws, derive_seed, make_key
from mixup_inference.training import OBJECTIVES, Batch, Recipe
from mixup_inference.training.batches import epoch_batches

torchattacks = pytest.importorskip("torchattacks")

COUNT, CLASSES, EPS = 40, 3, 0.06
X = 0.2 + 0.6 * torch.rand(COUNT, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(COUNT) % CLASSES
BATCH = Batch(X, Y, torch.arange(COUNT) + 50, epoch=2)


def network(dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, CLASSES)).to(
            dtype
        )


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


def examples(name, model, batch=BATCH, **settings):
    recipe = Recipe(objective=name, eps=EPS, step=0.02, steps=5, **settings)
    return OBJECTIVES[name].function(model, batch, recipe, CLASSES)


@pytest.mark.parametrize("beta", [0.0, 1.0, 6.0])
def test_trades_is_cross_entropy_plus_beta_times_the_divergence(beta):
    model, twin = network(), network()
    e = examples("trades", model, beta=beta)
    found, clean = e.x.chunk(2)
    assert torch.equal(clean, X)
    assert float((found - X).abs().max()) <= EPS + 1e-12
    loss = e.loss(e.logits(model))
    natural, attacked = twin(X), twin(found)
    divergence = nn.KLDivLoss(reduction="batchmean")
    expected = functional.cross_entropy(natural, Y) + beta * divergence(
        attacked.log_softmax(1), natural.softmax(1)
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_attack_of_trades_is_that_of_torchattacks(monkeypatch):
    noise = Draws.once(make_key(0, "trades start", 2), BATCH.index).normal(0, (1, 4, 4))[:, 0]
    model = network(torch.float32)
    batch = Batch(X.float(), Y, BATCH.index, 2)
    found = examples("trades", model, batch).x[:COUNT]
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    theirs = torchattacks.TPGD(model, eps=EPS, alpha=0.02, steps=5)(batch.x, Y)
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=0)

    @torch.no_grad()
    def divergence(image):
        clean = model(batch.x).softmax(1)
        return float(functional.kl_div(model(image).log_softmax(1), clean, reduction="batchmean"))

    assert divergence(found) > 2 * divergence(batch.x + EPS * noise.sign())


def test_a_step_of_trades_is_that_of_art():
    x, model, twin = X.float(), network(torch.float32), network(torch.float32)
    e = examples("trades", model, Batch(x, Y, BATCH.index, 2), beta=6.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    e.loss(e.logits(model)).backward()
    optimizer.step()

    class Ours:
        """The adversarial examples above, whatever the order."""

        def generate(self, images, y):
            rows = (torch.from_numpy(images)[:, None] == x).flatten(2).all(2).long().argmax(1)
            return e.x[:COUNT][rows].numpy()

    classifier = PyTorchClassifier(
        twin,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(twin.parameters(), lr=5.0),
        input_shape=(1, 4, 4),
        nb_classes=CLASSES,
        device_type="cpu",
    )
    trainer = AdversarialTrainerTRADESPyTorch(classifier, attack=Ours(), beta=6.0)
    trainer.fit(x.numpy(), np.eye(CLASSES)[Y.numpy()], batch_size=COUNT, nb_epochs=1)
    torch.testing.assert_close(weights(model), weights(twin), atol=1e-5, rtol=1e-5)
    assert float((weights(model) - weights(network(torch.float32))).abs().max()) > 1e-2


def test_fast_at_takes_one_long_step_from_a_random_start():
    """On a linear model the sign of the gradient is known, so the example is too."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double()
    y = Y % 2
    recipe = Recipe(objective="fast-at", eps=EPS)
    e = OBJECTIVES["fast-at"].function(model, Batch(X, y, BATCH.index, 2), recipe, 2)
    weight = model[1].weight.detach()
    uphill = (weight[1 - y] - weight[y]).sign().view_as(X)
    key = make_key(derive_seed(0, "inner attack", 2), "pgd start")
    start = ThreatModel("linf", EPS).start(X, BATCH.index, key) - X
    torch.testing.assert_close(e.x, X + (start + 1.25 * EPS * uphill).clamp(-EPS, EPS))
    assert float(((e.x - X) * uphill).min()) >= 0.25 * EPS - 1e-12
    torch.testing.assert_close(e.loss(model(e.x)), functional.cross_entropy(model(e.x), y))


def test_fast_at_is_that_of_torchattacks(monkeypatch):
    model, x = network(torch.float32), X.float()
    key = make_key(derive_seed(0, "inner attack", 2), "pgd start")
    start = ThreatModel("linf", EPS).start(x, BATCH.index, key) - x

    class Drawn:
        def uniform_(self, low, high):
            assert -low == high == EPS
            return start

    monkeypatch.setattr(torch, "randn_like", lambda _: Drawn())
    theirs = torchattacks.FFGSM(model, eps=EPS, alpha=1.25 * EPS)(x, Y)
    monkeypatch.undo()
    found = examples("fast-at", model, Batch(x, Y, BATCH.index, 2)).x
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=0)


def free_by_hand(model, x, y, recipe):
    """Algorithm 1 of free AT, written out; only the order is the project's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
    per_pass = -(-len(y) // recipe.batch_size)
    delta = torch.zeros(recipe.batch_size, *x.shape[1:], dtype=x.dtype)
    model.train()
    step, total, seen = 0, recipe.epochs * per_pass, 0
    while step < total:
        order = random_order(len(y), seed=0, name=f"epoch {seen}")
        for index in order.tensor_split(per_pass):
            for _ in range(recipe.replays):
                if step == total:
                    return
                leaf = delta[: len(index)].clone().requires_grad_()
                loss = functional.cross_entropy(model((x[index] + leaf).clamp(0, 1)), y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                moved = leaf.detach() + recipe.eps * leaf.grad.sign()
                delta[: len(index)] = moved.clamp(-recipe.eps, recipe.eps)
                step += 1
        seen += 1


@pytest.mark.parametrize("replays", [1, 3, 4])
def test_free_at_equals_its_algorithm_written_out(parts, replays):
    """Four epochs of three steps, of 54, 53 and 53 images, so that one row lies idle at times."""
    x, y = parts["train"].pixels[:160].double(), parts["train"].labels[:160]
    recipe = Recipe(objective="free-at", epochs=4, batch_size=60, lr=0.05, milestones=(), eps=0.1,
                    replays=replays)  # fmt: skip
    ours = create_model("small_cnn", 10, channels=1, width=4).double()
    expected = copy.deepcopy(ours)
    free_by_hand(expected, x, y, recipe)
    train(ours, x, y, recipe)
    torch.testing.assert_close(weights(ours), weights(expected), rtol=1e-10, atol=1e-10)


def test_replays_leave_the_number_of_steps_as_it_is():
    recipe = Recipe(batch_size=10)
    plain = [epoch_batches(recipe, 50, epoch) for epoch in range(2)]
    replayed = [epoch_batches(recipe, 50, epoch, replays=2) for epoch in range(4)]
    assert [len(batches) for batches in replayed] == 4 * [5]
    steps = [index for batches in replayed for index in batches]
    expected = [index for batches in plain for index in batches for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(steps, expected, strict=True))
