"""Our APGD and Square against those of AutoAttack, on a model without randomness."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.square import SquareAttack

from mixup_inference.attacks import ThreatModel
from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.square import square_eot
from mixup_inference.models.folding import fold

NAMES = {"linf": "Linf", "l2": "L2"}
# Robust accuracy between 20% and 80%: agreement at 0% would prove nothing.
EPS = {"linf": 0.09, "l2": 0.45}
LOSSES = ["ce", "dlr", "dlr-targeted"]
STEPS = 25


@pytest.fixture
def double():
    """AutoAttack keeps its losses in the default precision, whatever that of the model."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:100], parts["test"].labels[:100]


def both(model, x, y, norm, loss, *, repair):
    """The losses and the examples of AutoAttack's APGD and of ours, from the same starts.

    AutoAttack counts a step upwards by comparing with the loss before; before the first one it
    has stored none, and reads a zero there. ``repair`` gives it the loss of the start.
    """
    targets = (y + 1 + torch.arange(len(y)) % 9) % 10 if loss == "dlr-targeted" else None
    eps = EPS[norm] * (1 if targets is None else 1.6)
    start = ThreatModel(norm, eps).start(x, torch.arange(len(x)), 7)
    ours = functools.partial(apgd_eot, model, x, y, loss=loss.split("-")[0], eps=eps, norm=norm,
                             targets=targets, start=start)  # fmt: skip
    kind = APGDAttack if targets is None else APGDAttack_targeted
    options = {"loss": loss} if targets is None else {}
    peer = kind(model, n_iter=STEPS, norm=NAMES[norm], eps=eps, device="cpu", **options)
    peer.y_target = targets
    peer.init_hyperparam(x)
    if repair:
        first, original = ours(steps=0).loss, peer.check_oscillation

        def check_oscillation(losses, j, k, *args, **kwargs):
            if j == k - 1:
                losses = torch.cat([losses[:-1], first[None]])
            return original(losses, j, k, *args, **kwargs)

        peer.check_oscillation = check_oscillation
    best, _, their_loss, _ = peer.attack_single_run(x, y, x_init=start)
    out = ours(steps=STEPS)
    return out.loss, their_loss, out.examples, best


def accuracy(model, images, y):
    return float((model(images).argmax(1) == y).float().mean())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", LOSSES)
def test_apgd_equals_autoattacks_point_by_point(trained, points, norm, loss):
    x, y = points[0].double(), points[1]
    model = fold(copy.deepcopy(trained).double())  # as we would attack it: the same rounding
    ours, theirs, examples, best = both(model, x, y, norm, loss, repair=loss != "ce")
    if (norm, loss) == ("l2", "dlr"):
        # Where y is third, the loss is 1 and its gradient rounding, which only we scale to a step.
        ours, theirs = ours.clamp(max=1), theirs.clamp(max=1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert accuracy(model, examples, y) == accuracy(model, best, y)
    assert 0.2 <= accuracy(model, examples, y) <= 0.8


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", LOSSES)
def test_apgd_is_as_strong_as_autoattacks(trained, points, norm, loss):
    """As it is published, in single precision."""
    x, y = points
    ours, theirs, examples, best = both(trained, x, y, norm, loss, repair=False)
    if loss == "ce":
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert 0.2 <= accuracy(trained, best, y) <= 0.8
    assert abs(accuracy(trained, examples, y) - accuracy(trained, best, y)) <= 0.03


def test_apgd_over_several_targets_is_as_strong_as_autoattacks(trained, points):
    x, y = points[0][:60], points[1][:60]
    options = {"norm": "Linf", "eps": EPS["linf"], "n_target_classes": 9, "device": "cpu"}
    theirs = APGDAttack_targeted(trained, n_iter=STEPS, **options).perturb(x, y)
    ours = apgd_eot(trained, x, y, steps=STEPS, eps=EPS["linf"], target_classes=9)
    assert 0.2 <= accuracy(trained, theirs, y) <= 0.8
    assert abs(accuracy(trained, ours.examples, y) - accuracy(trained, theirs, y)) <= 0.04


class Reaching(SquareAttack):
    """AutoAttack's Square never puts a square on the last row or column; this one does."""

    def random_int(self, low=0, high=1, shape=(1,)):
        return super().random_int(low, high + 1, shape)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.12), ("l2", 0.8)])
def test_square_is_as_strong_as_autoattacks(trained, points, norm, eps):
    """Averages over seeds: AutoAttack's squares are the same for the whole batch."""
    x, y = points
    queries, seeds = 100, range(12)

    def by(kind):
        runs = (kind(trained, norm=NAMES[norm], eps=eps, n_queries=queries, device="cpu",
                     seed=seed).perturb(x, y) for seed in seeds)  # fmt: skip
        return sum(accuracy(trained, images, y) for images in runs) / len(seeds)

    runs = [square_eot(trained, x, y, norm=norm, eps=eps, queries=queries, seed=seed)
            for seed in seeds]  # fmt: skip
    ours = 1 - sum(float(run.success.mean()) for run in runs) / len(seeds)
    assert 0.2 <= ours <= 0.8
    assert abs(ours - by(Reaching)) <= 0.06  # three standard deviations
    assert ours <= by(SquareAttack) + 0.06
