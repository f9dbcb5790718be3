from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from mixup_inference import GaussianNoise, InputError, MixupInference, pgd
from mixup_inference.attacks import QueryModel, ThreatModel, eot_pgd, judge
from mixup_inference.attacks.success import check_points
from mixup_inference.defenses import BitDepthReduction
from mixup_inference.evaluation.attack_checks import (
    Check,
    at_least_as_strong,
    check_attack,
    loss_rises,
)
from mixup_inference.evaluation.binarization_test import (
    BinarizedDefense,
    _verdict,
    binarization_test,
    fit_readouts,
)

POINTS, EPS = 25, 0.2
SETTINGS = {"steps": 8, "draws": 3, "eps": EPS, "repeats": 3}


class Rounded(nn.Module):
    """Coarse grey levels before the model: the gradient is zero, the model no more robust."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(torch.round(4 * x) / 4)


class Detached(Rounded):
    """The model itself, which says that its gradient is zero."""

    def forward(self, x):
        return self.model(x.detach() + 0 * x)


@pytest.fixture(scope="module")
def some(parts):
    return parts["test"].pixels[:POINTS], parts["test"].labels[:POINTS]


@pytest.fixture(scope="module")
def transferred(trained, some):
    """Examples against the plain model."""
    return pgd(trained, *some, eps=EPS, step=EPS / 4, steps=20)


def verdicts(checks):
    assert all(check.detail.endswith(".") for check in checks)
    return {check.id: check.passed for check in checks}


@pytest.mark.parametrize(
    ("trace", "passed"),
    [
        ([0, 1, 2, 3, 4, 5], True),
        ([0, 5, 5, 5], True),
        ([1, 1, 1, 1], False),
        ([5, 4, 3, 2], False),
        ([1, 9, 9, 0, 0, 2], False),  # the end is higher, the last third is lower
        ([0, float("nan")], False),
        ([1], None),
    ],
)
def test_loss_rises(trace, passed):
    assert loss_rises(torch.tensor(trace, dtype=torch.float64)).passed is passed


def test_at_least_as_strong_fails_only_beyond_noise():
    def fooled(count):
        return (torch.arange(50) < count)[:, None].expand(50, 3)

    check = at_least_as_strong("name", fooled(20), fooled(40), titles=("it", "Square"))
    assert check.passed is False
    assert check.detail.startswith("it leaves 60.0%, Square 20.0%: +40.0 points (95%: +2")
    assert at_least_as_strong("name", fooled(38), fooled(40)).passed is True  # noise
    assert at_least_as_strong("name", fooled(40), fooled(20)).passed is True
    assert at_least_as_strong("name", fooled(50), fooled(50)).passed is True


def test_a_plain_network_is_green(trained, some, transferred):
    others = {"transfer": judge(trained, transferred, some[1])}
    checks = check_attack(trained, *some, others=others, **SETTINGS)
    assert verdicts(checks) == {
        "loss-rises": True,
        "twice-steps": True,
        "twice-draws": None,
        "seed-known": None,
        "unbounded": True,
        "weaker-attack": True,
        "binarization": True,
    }
    by_id = {check.id: check.detail for check in checks}
    assert "no randomness" in by_id["twice-draws"]
    full = "with eps = 1 and 20 steps it leaves 0.0% (allowed: 1%)."
    assert by_id["unbounded"] == full


@pytest.mark.parametrize(("mask", "noisy"), [(Rounded, 0), (Detached, 0), (Detached, 1)])
def test_masked_gradients_are_red(trained, some, transferred, mask, noisy):
    module = GaussianNoise(mask(trained), sigma=0.02, draws=3) if noisy else mask(trained)
    others = {"transfer": judge(module, transferred, some[1])}
    found = verdicts(check_attack(module, *some, others=others, **SETTINGS))
    assert found["unbounded"] is False
    assert found["weaker-attack"] is False
    assert found["binarization"] is False
    if not noisy:  # noise can end higher by chance
        assert found["loss-rises"] is False


@pytest.mark.usefixtures("same_global_state")
def test_randomised_defences(trained, pool, some):
    mixup = MixupInference(trained, pool, lam=0.4, draws=2)
    noise = GaussianNoise(trained, sigma=0.1, draws=4)
    checks = [check_attack(defense, *some, **SETTINGS) for defense in (mixup, noise)]
    for found in map(verdicts, checks):
        assert found["loss-rises"] is True
        assert found["twice-draws"] is True
        assert found["seed-known"] is True
        assert found["unbounded"] is True
    assert checks[0][-1].passed is None  # few examples stand out from the noise of 2 draws
    assert checks[1][-1].passed is True
    assert checks[1] == check_attack(noise, *some, **SETTINGS)


@pytest.mark.parametrize("inside", [False, True])
def test_a_surrogate_gradient_is_mentioned(trained, some, inside):
    """It is no failure, wherever in the defence it is; a gradient of one's own is no news."""
    defense = BitDepthReduction(trained, bits=4)
    if inside:
        defense = GaussianNoise(defense, sigma=0.05, clip=True, draws=2)
    found = {check.id: check for check in check_attack(defense, *some, **SETTINGS)}
    assert found["surrogate-gradient"].passed is None
    assert found["unbounded"].passed is True
    own = verdicts(check_attack(GaussianNoise(trained, sigma=0.05, draws=2), *some, **SETTINGS))
    assert "surrogate-gradient" not in own


def lazy(module, x, y, *, what, **settings):
    """An attack that gives up when asked for more steps or draws than usual."""
    if settings[what] > SETTINGS[what]:
        settings |= {"steps": 0, "random_start": False}
    return eot_pgd(module, x, y, **settings)


@pytest.mark.parametrize("what", ["steps", "draws"])
def test_more_effort_that_helps_the_defender_is_red(trained, some, what):
    noise = GaussianNoise(trained, sigma=0.1, draws=4)
    found = verdicts(check_attack(noise, *some, attack=partial(lazy, what=what), **SETTINGS))
    other = {"steps": "draws", "draws": "steps"}[what]
    assert found[f"twice-{what}"] is False
    assert found[f"twice-{other}"] is True


def test_more_effort_that_helps_the_attack_is_mentioned(trained, some):
    slow = partial(eot_pgd, step=0.008)
    checks = check_attack(trained, *some, attack=slow, **SETTINGS)
    assert checks[1].passed is True
    assert checks[1].detail.endswith("so even more steps may find more.")
    assert checks[-1].passed is False  # the planted examples are farther than it goes


def test_a_frozen_defence_that_resists_is_red(trained, some):
    noise = GaussianNoise(trained, sigma=0.1, draws=4)
    resists = torch.zeros(POINTS, 1, dtype=torch.bool)
    found = verdicts(check_attack(noise, *some, frozen=resists, **SETTINGS))
    assert found["seed-known"] is False


@pytest.mark.parametrize(("norm", "eps"), [("linf", 1.0), ("l2", 8.0)])
def test_eps_1_comes_with_a_step_to_match(trained, some, norm, eps):
    calls = []

    def watched(module, x, y, *, step=None, schedule="constant", **settings):
        calls.append((settings["eps"], step, schedule))
        return eot_pgd(module, x, y, step=step, schedule=schedule, **settings)

    def without(module, x, y, **settings):
        calls.append((settings["eps"], "step" in settings, "schedule" in settings))
        return eot_pgd(module, x, y, **settings)

    settings = SETTINGS | {"eps": 0.7 if norm == "l2" else EPS, "norm": norm}
    found = verdicts(check_attack(trained, *some, attack=watched, **settings))
    assert found["unbounded"] is True
    assert (eps, eps / 4, "linear") in calls
    check_attack(trained, *some, attack=without, **settings)
    assert (eps, False, False) in calls


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_planted_examples_are_found_by_gradients_and_not_by_chance(trained, some, norm):
    settings = {"norm": norm, "eps": 0.1 if norm == "linf" else 0.6, "steps": 10}
    found = binarization_test(trained, *some, **settings)
    assert found.passed is True
    assert int(found.detail.rstrip(".").split()[-1]) <= 4  # random search
    timid = partial(eot_pgd, step=settings["eps"] / 50)
    assert binarization_test(trained, *some, attack=timid, **settings).passed is False


def test_readouts_are_no_at_x_and_around_it(trained, some):
    x, y = some
    index, ball = torch.arange(POINTS), ThreatModel("linf", EPS)
    model = QueryModel(trained, x)
    readout, valid = fit_readouts(model, check_points(x, y, index), ball, draws=1)
    assert int(valid.sum()) >= POINTS - 2
    module = BinarizedDefense(model, index[valid], readout.rows(valid))
    near = ThreatModel("linf", EPS / 2).start(x, index, key=12345)[valid]
    for places in (x[valid], near):
        assert int(module(places, index=index[valid]).argmax(1).sum()) == 0


def test_the_readout_follows_the_point(trained, some):
    """Some rows, out of order, at positions of a larger data set, get the same answers."""
    x, y = some
    index = 1000 + torch.arange(POINTS).flip(0)
    model = QueryModel(trained, x)
    readout, _ = fit_readouts(model, check_points(x, y, index), ThreatModel("linf", EPS), draws=1)
    module = BinarizedDefense(model, index, readout)
    rows = torch.tensor([7, 3, 24])
    whole = module(x, index=index)
    yes = torch.sigmoid(readout.logit(trained(x).log_softmax(1)))
    torch.testing.assert_close(whole[:, 1].exp(), yes)
    torch.testing.assert_close(module(x[rows], index=index[rows]), whole[rows])
    torch.testing.assert_close(module.draw(x, 3, index=index)[:, 0], whole)
    torch.testing.assert_close(whole.exp().sum(1), torch.ones(POINTS))
    with pytest.raises(InputError, match="give its index"):
        module(x)
    with pytest.raises(InputError, match="names a point twice"):
        binarization_test(trained, x, y, index=torch.zeros(POINTS, dtype=torch.int64))


def test_an_attack_on_the_readout_is_an_attack_through_the_defence(trained, some):
    """Every draw passes through F, and is counted."""
    x, y = some
    index, noise = torch.arange(POINTS), GaussianNoise(trained, sigma=0.05, draws=6)
    model = QueryModel(noise, x)
    readout, _ = fit_readouts(model, check_points(x, y, index), ThreatModel("linf", EPS), draws=3)
    module = BinarizedDefense(model, index, readout)
    attacked = eot_pgd(module, x, torch.zeros_like(y), steps=4, draws=3, eps=EPS)
    assert attacked.forward == POINTS * 3 * 5
    assert attacked.backward == POINTS * 3 * 4
    answer = noise(x, index=index, stream="s")
    torch.testing.assert_close(
        module(x, index=index, stream="s")[:, 1].exp(), torch.sigmoid(readout.logit(answer))
    )


def test_what_drowns_in_noise_is_not_decided(trained, some):
    loud = GaussianNoise(trained, sigma=1.0, draws=2)
    check = binarization_test(loud, *some, eps=0.01, steps=5, draws=2)
    assert check.passed is None
    assert "of 25 points could be given a planted example, and at least 5" in check.detail


@pytest.mark.parametrize(
    ("found", "by_chance", "count", "passed"),
    [(18, 2, 20, True), (17, 2, 20, False), (4, 0, 5, True), (3, 0, 5, False),
     (20, 10, 20, None), (17, 20, 20, False)],
)  # fmt: skip
def test_verdict(found, by_chance, count, passed):
    check = _verdict(found, by_chance, count, 25)
    assert check.passed is passed
    assert f"it finds {found} of {count} planted examples" in check.detail


def test_bad_inputs(trained, some):
    x, y = some
    with pytest.raises(InputError, match="Square was run on 7 points"):
        check_attack(trained, x, y, others={"Square": torch.zeros(7, 1).bool()}, **SETTINGS)
    with pytest.raises(InputError, match="steps must be at least 1"):
        check_attack(trained, x, y, **(SETTINGS | {"steps": 0}))
    with pytest.raises(InputError, match="Divide by 255"):
        binarization_test(trained, x * 255, y)
    assert Check("a", "name", None, "why.") == Check("a", "name", None, "why.")
