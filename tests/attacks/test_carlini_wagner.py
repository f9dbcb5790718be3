"""Carlini and Wagner's attack where the nearest example is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import InputError, MixupInference, Pool
from mixup_inference.attacks import carlini_wagner, check_settings, judge, run_attack
from mixup_inference.experiments import check_spec

torch.manual_seed(3)
CLASSES = 4
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(25, CLASSES)).double()
X = 0.3 + 0.4 * torch.rand(8, 1, 5, 5, dtype=torch.float64)
Y = LINEAR(X).argmax(1)
TWO = nn.Sequential(nn.Flatten(), nn.Linear(25, 2)).double()
FAR = {"eps": 5.0, "norm": "l2"}  # no image of 25 pixels is further away


def distances(x, y, model=LINEAR):
    """To each class's boundary: (f_y - f_k) / |w_y - w_k|, infinite for y itself."""
    logits, weight = model(x).detach(), model[1].weight.detach()
    lead = logits.gather(1, y[:, None]) - logits
    return (lead / (weight[y][:, None] - weight).norm(dim=2)).nan_to_num(torch.inf)


def test_the_nearest_example_of_a_linear_model():
    """With two classes it is |f_0 - f_1| / |w_0 - w_1| away, along w_0 - w_1."""
    y = TWO(X).argmax(1)
    nearest = distances(X, y, TWO).amin(1)
    result = carlini_wagner(TWO, X, y, steps=400, learning_rate=0.02, searches=12, **FAR)
    assert float(result.success.mean()) == 1.0
    assert bool((result.l2 >= nearest).all())
    torch.testing.assert_close(result.l2, nearest, rtol=2e-3, atol=0)
    normal = (TWO[1].weight[0] - TWO[1].weight[1]).detach()
    along = (result.examples - X).flatten(1) @ normal / normal.norm()
    torch.testing.assert_close(along.abs(), nearest, rtol=2e-3, atol=0)


def test_with_more_classes_it_may_miss_the_nearest_boundary_but_not_by_much():
    """It follows the class that leads, which need not be the nearest."""
    nearest = distances(X, Y).amin(1)
    result = carlini_wagner(LINEAR, X, Y, steps=400, learning_rate=0.005, **FAR)
    assert float(result.success.mean()) == 1.0
    assert bool((result.l2 >= nearest).all())
    assert int((result.l2 < 1.002 * nearest).sum()) >= 5
    assert bool((result.l2 < 1.2 * nearest).all())


def test_the_nearest_example_of_a_target():
    targets = (Y + 1) % CLASSES
    result = carlini_wagner(
        LINEAR, X, Y, targets=targets, steps=400, learning_rate=0.005, searches=12, **FAR
    )
    assert torch.equal(LINEAR(result.examples).argmax(1), targets)
    assert bool((result.l2 >= distances(X, Y).gather(1, targets[:, None])[:, 0]).all())


def test_confidence_is_the_lead_that_it_asks_for():
    sure = carlini_wagner(LINEAR, X, Y, steps=200, confidence=0.2, **FAR)
    lead = -LINEAR(sure.examples).gather(1, Y[:, None])[:, 0]
    lead += LINEAR(sure.examples).scatter(1, Y[:, None], -torch.inf).amax(1)
    assert bool((lead > 0.2).all())
    assert bool((lead < 0.25).all())
    torch.testing.assert_close(sure.loss, lead.detach())


def test_it_is_judged_within_eps():
    """What lies outside of the ball is projected, and no longer fools."""
    nearest = distances(X, Y).amin(1)
    eps = float(nearest.median())
    result = carlini_wagner(LINEAR, X, Y, eps=eps, norm="l2", steps=300, learning_rate=0.005)
    assert float(result.l2.max()) <= eps + 1e-9
    certainly = 1.02 * nearest + 1e-4 < eps
    assert bool(result.fooled[certainly].all())
    assert not bool(result.fooled[nearest > eps].any())
    assert 2 <= int(certainly.sum()) <= 6


def test_an_image_that_is_wrong_already_stays():
    wrong = (Y + 1) % CLASSES
    result = carlini_wagner(LINEAR, X, wrong, steps=3, searches=2, **FAR)
    assert float(result.l2.max()) < 1e-5
    assert bool(result.fooled.all())


def test_edges_of_the_range_are_reached_and_kept():
    x = (X > 0.5).double()
    result = carlini_wagner(LINEAR, x, LINEAR(x).argmax(1), steps=300, learning_rate=0.1, **FAR)
    assert 0 <= float(result.examples.min()) <= float(result.examples.max()) <= 1
    assert float(result.success.mean()) == 1.0


def test_against_a_random_defence_it_is_judged_on_fresh_draws():
    pool = Pool(torch.rand(20, 1, 5, 5, dtype=torch.float64), torch.arange(20) % CLASSES)
    mi = MixupInference(LINEAR, pool, lam=0.6, draws=5)
    near, sure = (
        carlini_wagner(mi, X, Y, steps=60, learning_rate=0.05, searches=5, draws=4, **FAR, **more)
        for more in ({}, {"confidence": 0.3})
    )
    assert torch.equal(near.fooled, judge(mi, near.examples, Y))
    assert float(sure.success.mean()) > float(near.success.mean())
    assert float(sure.l2.mean()) > float(near.l2.mean())
    assert near.forward == 8 * (1 + 4) * (5 * 60 + 2)
    assert near.backward == 8 * 4 * 5 * 60


def test_only_in_l2():
    with pytest.raises(InputError, match="norm='l2'"):
        run_attack("carlini-wagner", LINEAR, X, Y, settings={})
    for settings, words in (
        ({"constant": 0}, "constant must be at least"),
        ({"confidence": -1}, "confidence must be at least 0"),
        ({"searches": 0}, "searches must be at least 1"),
    ):
        with pytest.raises(InputError, match=words):
            check_settings("carlini-wagner", settings)
    spec = {
        "name": "tiny", "title": "tiny", "data": {"name": "digits", "test": 20},
        "network": {"name": "small_cnn"}, "models": {"m": {"objective": "erm"}},
        "rows": [{"title": "plain", "model": "m"}],
        "adaptive": {"points": 4, "attacks": [{"attack": "carlini-wagner", "steps": 50}]},
    }  # fmt: skip
    for norm in ("linf", "l2"):
        attack = {"eps": 0.1, "step": 0.02, "steps": [2], "norm": norm}
        checked = check_spec(spec | {"attack": attack})
        applies = checked.attack_applies(checked.adaptive.attacks[0], checked.rows[0])
        assert applies == (norm == "l2")
