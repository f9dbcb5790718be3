"""Attacks of other libraries, run by name through our interface."""

from __future__ import annotations

import random
import sys
import warnings

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from torch import nn

from mixup_inference import InputError, Pool, make_defense
from mixup_inference.attacks import (
    attack_title,
    check_settings,
    eot_pgd,
    external,
    get_attack,
    judge,
    run_attack,
)
from mixup_inference.attacks.external import check_peer, peer_attack, peer_names
from mixup_inference.attacks.query import lent
from mixup_inference.draws import derive_seed
from mixup_inference.errors import MixupInferenceWarning
from mixup_inference.models.call import count_passes

STEPS = 10
PGD = {
    "foolbox:LinfPGD": {"steps": STEPS, "abs_stepsize": 0.02, "random_start": False},
    "foolbox:L2PGD": {"steps": STEPS, "abs_stepsize": 0.1, "random_start": False},
    "torchattacks:PGD": {"steps": STEPS, "alpha": 0.02, "random_start": False},
    "torchattacks:PGDL2": {"steps": STEPS, "alpha": 0.1, "random_start": False},
    "art:ProjectedGradientDescent": {"max_iter": STEPS, "eps_step": 0.02},
}
AUTOATTACK = {
    "apgd-ce": {"n_iter": 5},
    "apgd-dlr": {"n_iter": 5},
    "fab": {"n_iter": 3, "n_restarts": 1},
    "square": {"n_queries": 20},
    "standard": {"n_iter": 3, "n_queries": 10, "n_target_classes": 1},
    "rand": {"n_iter": 5, "eot_iter": 2},
}

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))
MODEL[3].weight.data *= 10
X = torch.rand(6, 1, 6, 6)
Y = MODEL(X).argmax(1)
POOL = Pool(torch.rand(20, 1, 6, 6), torch.arange(20) % 5)


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:30], parts["test"].labels[:30]


@pytest.mark.parametrize("targeted", [False, True], ids=["untargeted", "targeted"])
@pytest.mark.parametrize("attack", PGD)
def test_pgd_without_a_random_start_is_ours(trained, points, attack, targeted):
    x, y = points
    l2 = "L2" in attack
    eps, step, norm = (0.45, 0.1, "l2") if l2 else (0.09, 0.02, "linf")
    common = {"eps": eps, "norm": norm, "draws": 1, "targeted": targeted}
    ours = eot_pgd(trained, x, y, steps=STEPS, step=step, random_start=False, **common)
    theirs = peer_attack(trained, x, y, attack=attack, settings=PGD[attack], **common)
    torch.testing.assert_close(theirs.examples, ours.examples, rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs.loss, ours.loss, rtol=0, atol=1e-4)
    assert torch.equal(theirs.fooled, ours.fooled)
    assert theirs.backward == ours.backward == 30 * STEPS
    assert float(theirs.trace[-1]) > float(theirs.trace[0]) == pytest.approx(float(ours.trace[0]))


@pytest.mark.parametrize("kind", ["plain", "mi-ol", "gaussian"])
@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("foolbox:LinfPGD", {"steps": 8, "rel_stepsize": 0.25}),
        ("torchattacks:PGD", {"steps": 8}),
        ("art:ProjectedGradientDescent", {"max_iter": 8, "num_random_init": 1}),
        ("autoattack:apgd-ce", {"n_iter": 8, "n_restarts": 1}),
    ],
)
def test_every_library_attacks_every_kind_of_model_and_is_judged_alike(
    trained, pool, points, kind, attack, settings
):
    x, y, index = *points, torch.arange(30) + 70
    defense = {
        "plain": lambda: trained,
        "mi-ol": lambda: make_defense("mi-ol", trained, pool, lam=0.6, draws=6),
        "gaussian": lambda: make_defense("gaussian", trained, sigma=0.15, draws=6),
    }[kind]()
    repeats = 1 if kind == "plain" else 3
    clean = float(judge(defense, x, y, repeats=repeats, index=index).double().mean())
    with count_passes(trained) as passes:
        result = peer_attack(
            defense, x, y, attack=attack, settings=settings, draws=3, eps=0.15, index=index,
            repeats=repeats,
        )  # fmt: skip
    assert float(result.success.mean()) > clean + 0.4
    assert torch.equal(
        result.fooled, judge(defense, result.examples, y, repeats=repeats, index=index)
    )
    assert float(result.linf.max()) <= 0.15 + 1e-6
    assert 0 <= float(result.examples.min()) <= float(result.examples.max()) <= 1
    assert float(result.trace[1]) > float(result.trace[0]) + 0.5
    judging = 30 * repeats * {"plain": 1, "mi-ol": 1 + 6, "gaussian": 6}[kind]
    probing = 3 * 8 * 2 * 4 if kind == "plain" else 0  # whether a foreign module is random
    assert result.forward == passes.forward - judging - probing
    assert result.backward == passes.backward > 0


def test_the_loss_is_that_of_the_mean_prediction_on_draws_of_its_own():
    mi, index = make_defense("mi-ol", MODEL, POOL, draws=9), torch.arange(6) + 20
    result = peer_attack(
        mi, X, Y, settings={"steps": 3}, draws=4, seed=5, index=index, targets=(Y + 1) % 5
    )
    for images, name, loss in (
        (X, "first", result.trace[0]),
        (result.examples, "last", result.loss.double().mean()),
    ):
        log_p = mi.draw(images, 4, index=index, stream=repr(("attack", 5, name)))
        p = log_p.exp().mean(1).gather(1, (Y[:, None] + 1) % 5)
        assert float(loss) == pytest.approx(float(p.log().mean()), abs=1e-5)


def test_autoattack_has_no_more_targets_than_classes():
    """It asks for nine; a small ball leaves points for all of them."""

    def run(**settings):
        settings = {"n_iter": 2, **settings}
        out = peer_attack(
            MODEL, X, Y, attack="autoattack:apgd-t", settings=settings, draws=1, eps=1e-4
        )
        assert not bool(out.fooled.any())
        return out.backward

    one = run(n_target_classes=1)
    assert (run(n_target_classes=2), run()) == (2 * one, 4 * one)


def test_counts_by_formula():
    """The loss at x and at the end, one gradient a step, and foolbox's own check at the end."""
    mi = make_defense("mi-ol", MODEL, POOL, draws=9)
    result = peer_attack(
        mi, X, Y, attack="foolbox:LinfPGD", settings={"steps": 4}, draws=3, batch_size=6
    )
    assert result.forward == 6 * (1 + 3) * (2 + 4 + 1)
    assert result.backward == 6 * 3 * 4


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", AUTOATTACK)
def test_autoattack_by_its_own_names(name, norm):
    mi = make_defense("mi-ol", MODEL, POOL, draws=4)
    eps = {"linf": 0.3, "l2": 1.0}[norm]
    result = peer_attack(
        mi, X, Y, attack=f"autoattack:{name}", settings=AUTOATTACK[name], draws=2, eps=eps,
        norm=norm,
    )  # fmt: skip
    assert float((result.linf if norm == "linf" else result.l2).max()) <= eps + 1e-5
    assert result.fooled.shape == (6, 5)
    assert (result.backward == 0) == (name == "square")


def test_autoattack_rand_by_our_name_is_autoattacks():
    """And what pyautoattack itself makes of the defence, one draw at a time."""
    mi = make_defense("mi-ol", MODEL, POOL, draws=4)
    settings, options = {"n_iter": 5, "eot_iter": 3}, {"eps": 0.2, "seed": 3, "batch_size": 6}
    ours = run_attack("autoattack-rand", mi, X, Y, settings=settings, **options)
    theirs = peer_attack(mi, X, Y, attack="autoattack:rand", settings=settings, draws=1, **options)
    assert torch.equal(ours.examples, theirs.examples)
    assert torch.equal(ours.fooled, judge(mi, ours.examples, Y))
    assert (ours.forward, ours.backward) == (theirs.forward, theirs.backward)
    assert attack_title("autoattack-rand", {}) == "AutoAttack rand"
    assert get_attack("autoattack-rand").threat_model == "peer"
    key = derive_seed(3, "peer", "autoattack:rand", 0) % 2**32
    seen = external._Boxed(mi, X, draws=1, seed=3)
    with lent(mi, key, X):
        alone = AutoAttack(seen, norm="Linf", eps=0.2, seed=key, device="cpu", version="rand")
        alone.apgd.n_iter, alone.apgd.eot_iter = 5, 3
        by_itself = alone.run_standard_evaluation(X, Y, batch_size=6)[0]
    torch.testing.assert_close(ours.examples, by_itself.detach())


def test_autoattack_rand_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    for use in (
        lambda: check_settings("autoattack-rand", {}),
        lambda: run_attack("autoattack-rand", MODEL, X, Y, settings={}),
    ):
        with pytest.raises(InputError, match=r"pip install mixup-inference\[peers\]"):
            use()


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("foolbox:LinfPGD", {"steps": 2}),
        ("torchattacks:PGD", {"steps": 2}),
        ("torchattacks:Square", {"n_queries": 5}),
        ("art:ProjectedGradientDescent", {"max_iter": 2, "num_random_init": 1}),
        ("art:SquareAttack", {"max_iter": 3}),
        ("autoattack:square", {"n_queries": 5}),
        ("autoattack:apgd-ce", {"n_iter": 2}),
    ],
)
def test_repeatable_and_without_a_trace(attack, settings):
    mi = make_defense("mi-ol", MODEL, POOL, draws=4)

    def run(model, seed, world):
        """With the global generators in another state each time, which is found again."""
        torch.manual_seed(world)
        np.random.seed(world)  # noqa: NPY002
        random.seed(world)
        before = torch.rand(1), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        torch.manual_seed(world)
        out = peer_attack(
            model, X, Y, attack=attack, settings=settings, draws=2, eps=0.3, seed=seed, batch_size=6
        )
        after = torch.rand(1), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        assert before == after
        return out.examples

    MODEL.train()
    for model in (mi, MODEL):
        first = run(model, 0, world=1)
        assert torch.equal(first, run(model, 0, world=2))
        assert not torch.equal(first, run(model, 1, world=1))
    assert MODEL.training
    assert all(weight.requires_grad and weight.grad is None for weight in MODEL.parameters())


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("foolbox:DDNAttack", {"steps": 5, "init_epsilon": 2.0}),
        ("foolbox:LinfDeepFoolAttack", {"steps": 5}),
        ("torchattacks:DeepFool", {"steps": 5}),
        ("art:CarliniL2Method", {"max_iter": 5, "initial_const": 50.0, "learning_rate": 0.2}),
    ],
)
def test_the_nearest_example_is_moved_into_the_ball(attack, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", MixupInferenceWarning)
        result = peer_attack(MODEL, X, Y, attack=attack, settings=settings, eps=0.02)
    assert float(result.linf.max()) == pytest.approx(0.02, abs=1e-6)


def test_leaving_the_ball_is_noticed(monkeypatch):
    def astray(job):
        out = job.x + 0.3
        out[0, 0, 0, 0] = torch.nan
        return out

    foolbox = external.LIBRARIES["foolbox"]
    monkeypatch.setitem(external.LIBRARIES, "foolbox", foolbox._replace(run=astray))
    with pytest.warns(MixupInferenceWarning, match=r"LinfPGD left the linf ball by 0\.[0-9]+"):
        result = peer_attack(MODEL, X, Y, eps=0.1)
    expected = (X + 0.1).clamp(max=1)
    expected[0, 0, 0, 0] = X[0, 0, 0, 0]
    torch.testing.assert_close(result.examples, expected)
    cropped = foolbox._replace(run=lambda job: job.x[:, :, 1:])
    monkeypatch.setitem(external.LIBRARIES, "foolbox", cropped)
    with pytest.raises(InputError, match=r"gave shape \(6, 1, 5, 6\), not \(6, 1, 6, 6\)"):
        peer_attack(MODEL, X, Y)


def test_steps_keep_their_ratio_to_eps():
    for attack, step in (("torchattacks:PGD", "alpha"), ("art:BasicIterativeMethod", "eps_step")):
        share = {"alpha": 0.25, "eps_step": 1 / 3}[step]
        start = {"random_start": False} if step == "alpha" else {}
        default = peer_attack(MODEL, X, Y, attack=attack, settings=start, eps=0.3)
        given = peer_attack(
            MODEL, X, Y, attack=attack, settings={step: 0.3 * share} | start, eps=0.3
        )
        torch.testing.assert_close(default.examples, given.examples)


def test_attacks_may_look_outside_of_the_range():
    mi = make_defense("mi-ol", MODEL, POOL, draws=4)
    result = peer_attack(mi, X, Y, attack="torchattacks:VNIFGSM", settings={"steps": 3}, eps=0.3)
    assert float(result.trace[1]) > float(result.trace[0])


def test_names():
    for library, some in {
        "foolbox": {"LinfPGD", "L2DeepFoolAttack"},
        "torchattacks": {"PGD", "APGD", "Square"},
        "art": {"ProjectedGradientDescent", "SquareAttack"},
        "autoattack": {*AUTOATTACK},
    }.items():
        names = peer_names(library)
        assert some <= set(names)
        assert names == sorted(names)
        for name in names:
            check_peer(f"{library}:{name}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attack": "foolbax:LinfPGD"}, "unknown attack library 'foolbax'; did you mean 'foolbox'"),
        ({"attack": "LinfPGD"}, "unknown attack library 'LinfPGD'"),
        ({"attack": "foolbox:LinfPDG"}, "unknown foolbox attack 'LinfPDG'; did you mean 'LinfPGD'"),
        ({"attack": "art:PGD"}, "unknown art attack 'PGD'"),
        ({"attack": "art:ProjectedGradientDescentTensorFlowV2"}, "unknown art attack"),
        ({"attack": "autoattack:apgd"}, "did you mean 'apgd-"),
        ({"settings": {"stepz": 3}}, "unknown setting of foolbox:LinfPGD 'stepz'; did .* 'steps'"),
        ({"settings": {"eps": 3}}, "eps is an option of peer_attack"),
        ({"attack": "torchattacks:PGD", "settings": {"model": 3}}, "unknown setting"),
        ({"attack": "autoattack:rand", "settings": {"steps": 3}}, "unknown setting .* Known: eot_"),
        (
            {"attack": "art:SquareAttack", "settings": {"max_iter": -3}},
            "refuses .* larger than zero",
        ),
        ({"attack": "foolbox:L2PGD"}, "bounded in l2, not in linf; give norm='l2'"),
        ({"attack": "foolbox:LinfPGD", "norm": "l2"}, "bounded in linf, not in l2"),
        ({"attack": "foolbox:L1PGD"}, "bounded in l1; only linf and l2"),
        ({"attack": "torchattacks:PGDL2"}, "bounded in l2, not in linf"),
        ({"attack": "torchattacks:PGD", "norm": "l2"}, "bounded in linf, not in l2"),
        ({"attack": "autoattack:rand", "targeted": True}, "AutoAttack chooses its targets"),
        ({"attack": "art:SquareAttack", "targeted": True}, "cannot go towards a class"),
        ({"attack": "torchattacks:TPGD", "targeted": True}, "refuses .* not supported"),
        ({"attack": "foolbox:FGSM", "targeted": True}, "refuses .* criterion"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"norm": "l3"}, "unknown norm"),
    ],
)
@pytest.mark.usefixtures("same_global_state")
def test_errors_say_what_to_do(options, words):
    with pytest.raises(InputError, match=words):
        peer_attack(MODEL, X, Y, **options)
    assert all(weight.requires_grad for weight in MODEL.parameters())


@pytest.mark.parametrize(
    ("attack", "module", "words"),
    [
        ("foolbox:LinfPGD", "foolbox", r"pip install mixup-inference\[peers\]"),
        ("art:SquareAttack", "art", r"pip install mixup-inference\[peers\]"),
        ("autoattack:rand", "pyautoattack", r"pip install mixup-inference\[peers\]"),
        ("torchattacks:PGD", "torchattacks", "pip install --no-deps torchattacks"),
    ],
)
def test_a_missing_library(monkeypatch, attack, module, words):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=words):
        peer_attack(MODEL, X, Y, attack=attack)


def test_labels_are_checked():
    with pytest.raises(InputError, match="contains label 9"):
        peer_attack(MODEL, X, Y * 0 + 9)
