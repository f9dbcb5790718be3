"""FGSM, BIM and MI-FGSM against foolbox and torchattacks, element by element."""

from __future__ import annotations

import foolbox
import pytest
import torch
import torchattacks

from mixup_inference import make_defense
from mixup_inference.attacks import bim, fgsm, momentum, momentum_transfer

STEPS = 8
BUDGETS = {"linf": (0.09, 0.02), "l2": (0.45, 0.1)}


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:60], parts["test"].labels[:60]


def by_foolbox(attack, model, x, y, eps, targets):
    criterion = y if targets is None else foolbox.criteria.TargetedMisclassification(targets)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    return attack(wrapped, x, criterion, epsilons=eps)[1]


def by_torchattacks(attack, x, y, targets):
    if targets is None:
        return attack(x, y)
    attack.set_mode_targeted_by_label(quiet=True)
    return attack(x, targets)


def agree(ours, theirs, x, eps):
    """The sign of a gradient within rounding of zero may differ, and the path from there on."""
    assert float((ours - x).abs().amax()) > 0.1 * eps
    same = (ours - theirs).abs().flatten(1).amax(1) < 1e-5
    assert int((~same).sum()) <= 1


def goals(y, targeted):
    return (y + 1 + torch.arange(len(y)) % 9) % 10 if targeted else None


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fgsm_is_foolboxs(trained, points, norm):
    x, y = points
    eps = BUDGETS[norm][0]
    cls = {"linf": "LinfFastGradientAttack", "l2": "L2FastGradientAttack"}[norm]
    theirs = by_foolbox(getattr(foolbox.attacks, cls)(), trained, x, y, eps, None)
    agree(fgsm(trained, x, y, eps=eps, norm=norm).examples, theirs, x, eps)


@pytest.mark.parametrize("targeted", [False, True])
def test_fgsm_is_torchattackss(trained, points, targeted):
    x, y = points
    targets, eps = goals(y, targeted), BUDGETS["linf"][0]
    theirs = by_torchattacks(torchattacks.FGSM(trained, eps=eps), x, y, targets)
    agree(fgsm(trained, x, y, eps=eps, targets=targets).examples, theirs, x, eps)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_bim_is_foolboxs(trained, points, norm, targeted):
    x, y = points
    (eps, step), targets = BUDGETS[norm], goals(y, targeted)
    cls = {"linf": "LinfBasicIterativeAttack", "l2": "L2BasicIterativeAttack"}[norm]
    attack = getattr(foolbox.attacks, cls)(steps=STEPS, abs_stepsize=step)
    theirs = by_foolbox(attack, trained, x, y, eps, targets)
    ours = bim(trained, x, y, eps=eps, norm=norm, steps=STEPS, step=step, targets=targets)
    agree(ours.examples, theirs, x, eps)


def test_bim_is_torchattackss(trained, points):
    x, y = points
    eps, step = BUDGETS["linf"]
    theirs = torchattacks.BIM(trained, eps=eps, alpha=step, steps=STEPS)(x, y)
    ours = bim(trained, x, y, eps=eps, steps=STEPS, step=step)
    agree(ours.examples, theirs, x, eps)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("targeted", [False, True])
def test_momentum_is_torchattackss(trained, points, targeted, decay):
    x, y = points
    (eps, step), targets = BUDGETS["linf"], goals(y, targeted)
    attack = torchattacks.MIFGSM(trained, eps=eps, alpha=step, steps=STEPS, decay=decay)
    theirs = by_torchattacks(attack, x, y, targets)
    settings = {"eps": eps, "steps": STEPS, "step": step, "decay": decay, "targets": targets}
    agree(momentum(trained, x, y, **settings).examples, theirs, x, eps)
    agree(momentum_transfer(trained, x, y, **settings).examples, theirs, x, eps)


def test_through_a_frozen_defence_they_are_torchattackss(trained, pool, points):
    x, y = points[0][:30], points[1][:30]
    defense = make_defense("mi-ol", trained, pool, draws=5, fresh=False, lam=0.6)
    for attack, ours in (
        (torchattacks.FGSM(defense, eps=0.1), fgsm(defense, x, y, eps=0.1)),
        (
            torchattacks.MIFGSM(defense, eps=0.1, alpha=0.1 / STEPS, steps=STEPS),
            momentum(defense, x, y, eps=0.1, steps=STEPS),
        ),
    ):
        theirs = attack(x, y)
        changed = (defense(theirs).argmax(1) != defense(ours.examples).argmax(1)).sum()
        assert int(changed) <= 1
        assert float((ours.examples - theirs).abs().mean()) < 1e-3


def test_transferred_it_is_crafted_on_the_surrogate(trained, pool, points):
    x, y = points
    other = make_defense("gaussian", trained, sigma=0.1, draws=2, fresh=False)
    mi = make_defense("mi-ol", trained, pool, draws=3)
    result = momentum_transfer(mi, x, y, surrogates=[other], eps=0.1, steps=STEPS)
    crafted = momentum(other, x, y, eps=0.1, steps=STEPS)
    assert float((result.examples - crafted.examples).abs().mean()) < 1e-3
    assert result.fooled.shape == (60, 5)
