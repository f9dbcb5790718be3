from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from mixup_inference import InputError, MixupInference, pgd
from mixup_inference.attacks import random_targets
from mixup_inference.draws import Draws, make_key

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
X = torch.rand(9, 1, 6, 6)
Y = torch.arange(9) % 3


def norms(delta, norm):
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.norm(dim=1)


@given(
    eps=st.floats(0, 2),
    step=st.floats(0, 3),
    steps=st.integers(0, 4),
    norm=st.sampled_from(["linf", "l2"]),
    targeted=st.booleans(),
    start=st.booleans(),
)
def test_stays_in_the_ball_and_in_range(eps, step, steps, norm, targeted, start):
    out = pgd(MODEL, X, Y, eps=eps, step=step, steps=steps, norm=norm, targeted=targeted,
              random_start=start)  # fmt: skip
    assert bool((norms(out - X, norm) <= eps + 1e-6).all())
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    if eps == 0:
        assert torch.equal(out, X)


@given(rows=st.permutations(range(9)), batch_size=st.integers(1, 9))
def test_each_point_is_attacked_on_its_own(rows, batch_size):
    """Permutation equivariance, independence of the batch size, seeds that follow the point."""
    index = torch.arange(9) + 100
    settings = {"eps": 0.2, "step": 0.05, "steps": 2}
    for targeted in (False, True):
        whole = pgd(MODEL, X, Y, index=index, targeted=targeted, **settings)
        shuffled = pgd(
            MODEL, X[rows], Y[rows], index=index[rows], batch_size=batch_size,
            targeted=targeted, **settings,
        )  # fmt: skip
        torch.testing.assert_close(shuffled, whole[rows])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("targeted", [False, True])
def test_one_trajectory_gives_all_snapshots(norm, targeted):
    settings = {"eps": 0.3, "step": 0.05, "norm": norm, "targeted": targeted, "seed": 4}
    out = pgd(MODEL, X, Y, steps=9, snapshots=(0, 3, 9), **settings)
    assert list(out) == [0, 3, 9]
    for steps, images in out.items():
        assert torch.equal(images, pgd(MODEL, X, Y, steps=steps, **settings))
    assert not torch.equal(out[3], out[9])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_one_step_from_x_is_equation_18(norm):
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(functional.cross_entropy(MODEL(x), Y, reduction="sum"), x)
    direction = g.sign() if norm == "linf" else g / g.flatten(1).norm(dim=1)[:, None, None, None]
    out = pgd(MODEL, X, Y, eps=1, step=0.03, steps=1, norm=norm, random_start=False)
    torch.testing.assert_close(out, (X + 0.03 * direction).clamp(0, 1))


def test_untargeted_raises_the_loss_and_targeted_lowers_that_of_the_target():
    def loss(x, y):
        return functional.cross_entropy(MODEL(x), y, reduction="none")

    away = pgd(MODEL, X, Y, eps=0.2, step=0.05)
    assert bool((loss(away, Y) > loss(X, Y)).all())
    targets = random_targets(Y, 3, seed=0)
    towards = pgd(MODEL, X, Y, eps=0.2, step=0.05, targeted=True)
    assert bool((loss(towards, targets) < loss(X, targets)).all())
    assert torch.equal(towards, pgd(MODEL, X, Y, eps=0.2, step=0.05, targets=targets))


def test_targets_are_uniform_over_the_other_classes():
    y = torch.arange(30000) % 10
    targets = random_targets(y, 10, seed=2)
    assert not bool((targets == y).any())
    counts = torch.bincount(targets[y == 3], minlength=10)
    assert (counts[torch.arange(10) != 3] - 333).abs().max() < 100  # 5 standard deviations


def test_predicted_labels_go_away_from_the_prediction():
    wrong = (MODEL(X).argmax(1) + 1) % 3
    official = pgd(MODEL, X, wrong, labels="predicted", seed=1)
    assert torch.equal(official, pgd(MODEL, X, MODEL(X).argmax(1), seed=1))
    assert not torch.equal(official, pgd(MODEL, X, wrong, seed=1))


def test_random_starts():
    far = torch.full((4000, 1, 2, 2), 0.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    y = torch.zeros(4000, dtype=torch.long)
    cube = pgd(model, far, y, eps=0.2, steps=0) - far
    assert abs(float(cube.abs().mean()) - 0.1) < 0.003
    assert float(cube.abs().max()) > 0.199
    radius = (pgd(model, far, y, eps=0.2, steps=0, norm="l2") - far).flatten(1).norm(dim=1) / 0.2
    assert abs(float((radius**4).mean()) - 0.5) < 0.03  # uniform in a ball of dimension 4
    assert not torch.equal(cube, pgd(model, far, y, eps=0.2, steps=0, seed=1) - far)


@pytest.mark.usefixtures("same_global_state")
def test_leaves_model_and_global_state_alone():
    MODEL.train()
    pgd(MODEL, X, Y, steps=2)
    snapshots = pgd(MODEL, X, Y, steps=2, snapshots=(0, 1, 2), random_start=False)
    assert not any(image.requires_grad for image in (X, *snapshots.values()))
    assert MODEL.training
    assert all(p.grad is None for p in MODEL.parameters())


def test_attacks_a_model_in_eval_mode():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Dropout(0.9), nn.Linear(36, 3))
    trained = pgd(model.train(), X, Y)
    assert float(model[1].num_batches_tracked) == 0
    assert torch.equal(trained, pgd(model.eval(), X, Y))


def test_attacks_through_a_defence(trained, pool, parts):
    """The gradient through frozen mixup inference hurts it more than the oblivious attack."""
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    mi = MixupInference(trained, pool, lam=0.6, draws=8, fresh=False)
    settings = {"eps": 0.1, "step": 0.02, "steps": 10}

    def accuracy(images):
        return float((mi(images).argmax(1) == y).float().mean())

    assert accuracy(x) > 0.8
    assert accuracy(pgd(mi, x, y, **settings)) < accuracy(pgd(trained, x, y, **settings)) - 0.1


def test_half_precision_with_a_vanishing_gradient():
    class Flat(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3] * 0

    out = pgd(Flat(), X.half(), Y, norm="l2", eps=0.5, step=0.1, steps=2, random_start=False)
    assert torch.equal(out, X.half())


def test_starts_are_those_of_the_stream():
    draws = Draws(make_key(3, "pgd start"), torch.arange(9), torch.zeros(1, dtype=torch.int64))
    delta = 0.1 * (2 * draws.uniform_block(0, (1, 6, 6))[:, 0] - 1)
    start = pgd(MODEL, X, Y, eps=0.1, steps=0, seed=3)
    torch.testing.assert_close(start, (X + delta).clamp(0, 1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eps": -1}, "eps must be at least 0"),
        ({"step": float("inf")}, "step must be"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"norm": "l3"}, "unknown norm"),
        ({"labels": "mine"}, "unknown labels"),
        ({"snapshots": (5, 20)}, "between 0 and steps = 10"),
        ({"snapshots": ()}, "snapshots must lie"),
        ({"targets": Y + 3}, "contains label 5"),
        ({"targets": torch.arange(18) % 3}, "targets has 18 labels for 9 images"),
        ({"targets": [0, 1]}, "targets must be a torch tensor"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"index": torch.arange(3)}, "one integer per image"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        pgd(MODEL, X, Y, **settings)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X * 255, Y, "Divide by 255"),
        (X, Y[:4], "4 labels for 9 images"),
        (X, Y.float(), "integer labels"),
        (X, Y + 3, "contains label 5"),
        (X, Y.tolist(), "torch tensor"),
        (X, Y - 1, "contains label -1"),
        (X[:0], Y[:0], "empty batch"),
    ],
)
def test_bad_inputs(x, y, words):
    with pytest.raises(InputError, match=words):
        pgd(MODEL, x, y)


def test_labels_are_checked_in_targeted_mode_too():
    with pytest.raises(InputError, match="contains label 5"):
        pgd(MODEL, X, Y + 3, targeted=True)
    with pytest.raises(InputError, match=r"nn\.Module"):
        pgd(lambda x: x, X, Y)
