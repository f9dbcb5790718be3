"""Agreement with libraries that nobody here wrote, and our defences inside them."""

from __future__ import annotations

import logging

import foolbox
import numpy as np
import pytest
import torch
import torchattacks
from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import PyTorchClassifier
from pyautoattack import AutoAttack
from torch import nn

from mixup_inference import evaluate, make_defense, pgd

STEPS = 12
# Chosen so that robust accuracy lies between 20% and 80%: agreement at 0% would prove nothing.
BUDGETS = {"linf": (0.09, 0.02), "l2": (0.45, 0.1)}
DEFENSES = {
    "gaussian": {"sigma": 0.15},
    "rotation": {"degrees": 20.0},
    "resize-pad": {"size": (7, 8)},
    "crop-resize": {"size": (7, 8)},
    "jpeg": {"quality": 75},
    "bit-depth": {"bits": 3},
    "blur": {"sigma": 0.5},
    "resize": {"size": 0.75},
    "total-variation": {"drop": 0.2, "weight": 0.01},
    "bart": {"transforms": 1},
    "smoothing": {"sigma": 0.15},
    "dip": {},
    "mi-ol": {"lam": 0.6},
    "mi-pl": {"lam": 0.6},
    "mi-combined": {"threshold": 0.0, "lam_detect": 0.6, "lam_defend": 0.6},
}


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:100], parts["test"].labels[:100]


def by_foolbox(model, x, y, norm, eps, step, targets=None):
    attack = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm](
        steps=STEPS, abs_stepsize=step, random_start=False
    )
    criterion = y if targets is None else foolbox.criteria.TargetedMisclassification(targets)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, out, _ = attack(wrapped, x, criterion, epsilons=eps)
    return out


def by_torchattacks(model, x, y, norm, eps, step, targets=None):
    cls = {"linf": torchattacks.PGD, "l2": torchattacks.PGDL2}[norm]
    attack = cls(model, eps=eps, alpha=step, steps=STEPS, random_start=False)
    if targets is None:
        return attack(x, y)
    attack.set_mode_targeted_by_label(quiet=True)
    return attack(x, targets)


def by_art(model, x, y, norm, eps, step, targets=None):
    classifier = PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=10,
        clip_values=(0, 1), device_type="cpu",
    )  # fmt: skip
    attack = ProjectedGradientDescent(
        classifier, norm=np.inf if norm == "linf" else 2, eps=eps, eps_step=step, max_iter=STEPS,
        targeted=targets is not None, batch_size=128, verbose=False,
    )  # fmt: skip
    labels = (y if targets is None else targets).numpy()
    return torch.from_numpy(attack.generate(x.numpy(), labels))


PEERS = {"foolbox": by_foolbox, "torchattacks": by_torchattacks, "art": by_art}


@pytest.mark.parametrize("targeted", [False, True], ids=["untargeted", "targeted"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("peer", PEERS)
def test_pgd_equals_the_peers(trained, points, peer, norm, targeted):
    x, y = points
    eps, step = BUDGETS[norm]
    if targeted:
        eps, step = 1.6 * eps, 1.6 * step
    if peer == "art" and norm == "l2":
        # ART clips to [0, 1] before it projects, the others and we after: keep off the walls.
        x, eps, step = 0.25 + 0.5 * x, 0.3 * eps, 0.3 * step
    targets = (y + 1 + torch.arange(len(y)) % 9) % 10 if targeted else None
    ours = pgd(trained, x, y, eps=eps, step=step, steps=STEPS, norm=norm, targets=targets,
               random_start=False)  # fmt: skip
    theirs = PEERS[peer](trained, x, y, norm, eps, step, targets)
    assert 0.2 <= evaluate(trained, ours, y).value <= 0.8
    # The sign of a gradient within rounding of zero may differ between orders of summation,
    # and the point's path from there on: allow it for one point in a hundred.
    same = (ours - theirs).abs().flatten(1).amax(1) < 1e-5
    assert int((~same).sum()) <= 1


@pytest.mark.parametrize("kind", DEFENSES)
@pytest.mark.parametrize("peer", PEERS)
def test_peers_attack_our_defences_as_they_are(trained, pool, points, peer, kind):
    """Frozen draws make the defence deterministic, so that the peers' result must equal ours."""
    x, y = points[0][:40], points[1][:40]
    eps, step = 0.15, 0.04
    defense = make_defense(kind, trained, pool, draws=5, fresh=False, **DEFENSES[kind])
    ours = pgd(defense, x, y, eps=eps, step=step, steps=STEPS, random_start=False)
    theirs = PEERS[peer](defense, x, y, "linf", eps, step)
    clean, under_ours, under_theirs = (
        float((defense(z).argmax(1) == y).float().mean()) for z in (x, ours, theirs)
    )
    assert under_theirs < clean - 0.2  # they saw gradients
    assert abs(under_ours - under_theirs) <= 0.05
    same = (ours - theirs).abs().flatten(1).amax(1) < 1e-5
    assert float(same.float().mean()) > 0.85


@pytest.mark.parametrize("kind", ["mi-ol", "gaussian", "mi-combined"])
def test_autoattack_runs_on_our_defences(trained, pool, points, kind, caplog):
    caplog.set_level(logging.INFO, logger="auto-attack")
    x, y = points[0][:25], points[1][:25]
    defense = make_defense(kind, trained, pool, draws=4, **DEFENSES[kind])
    attack = AutoAttack(
        defense, eps=0.15, version="custom", attacks=["apgd-ce", "apgd-dlr"], seed=0
    )
    for part in (attack.apgd,):
        part.n_restarts, part.n_iter, part.eot_iter = 1, 10, 2
    out = attack.run_standard_evaluation(x, y)
    images = out[0] if isinstance(out, tuple) else out
    clean = float((defense(x).argmax(1) == y).float().mean())
    assert float((defense(images).argmax(1) == y).float().mean()) < clean - 0.2
    assert "softmax" not in caplog.text  # log-probabilities are not mistaken for probabilities


def test_an_attack_that_reseeds_the_global_generator_does_not_reseed_the_defence(
    trained, pool, points
):
    defense = make_defense("mi-ol", trained, pool, draws=3)
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        outputs.append(defense(points[0][:5]))
    assert not torch.equal(*outputs)
