"""Carlini and Wagner's attack against foolbox, element by element, and torchattacks."""

from __future__ import annotations

import foolbox
import pytest
import torch
import torchattacks
from torch import nn

from mixup_inference.attacks import carlini_wagner

FAR = {"eps": 8.0, "norm": "l2"}


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:12].double(), parts["test"].labels[:12]


@pytest.fixture(scope="module")
def model(trained):
    return nn.Sequential(trained).double().eval()


@pytest.fixture(autouse=True, scope="module")
def _float_again(trained):
    yield
    trained.float()


class Positive(nn.Module):
    def forward(self, logits):
        return logits + 50


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_it_is_foolboxs(model, points, targeted, confidence):
    x, y = points
    targets = (y + 1) % 10 if targeted else None
    settings = {"steps": 40, "confidence": confidence}
    attack = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=5, stepsize=0.05, initial_const=0.1, abort_early=False, **settings
    )
    criterion = y if targets is None else foolbox.criteria.TargetedMisclassification(targets)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    theirs = attack(wrapped, x, criterion, epsilons=None)[1]
    ours = carlini_wagner(
        model, x, y, targets=targets, searches=5, learning_rate=0.05, constant=0.1, **settings,
        **FAR,
    )  # fmt: skip
    found = theirs.flatten(1).norm(dim=1) > 0  # foolbox returns zeros where it finds nothing
    assert int(found.sum()) >= 8
    torch.testing.assert_close(ours.examples[found], theirs[found], rtol=0, atol=1e-5)


def test_torchattacks_with_its_one_constant(model, points):
    """It has no search for c, and stops all images when the sum of their losses rises.

    Pixels at 0 and 1 are infinitely far away for it, and it takes negative logits of other classes
    for 0: keep off both.
    """
    model = nn.Sequential(model, Positive()).eval()
    x, y = 0.1 + 0.8 * points[0], points[1]
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    exact = 0
    for image, label in zip(x.split(1), y.split(1), strict=True):
        theirs = torchattacks.CW(model, c=10, kappa=0, steps=30, lr=0.02)(image, label)
        ours = carlini_wagner(
            model, image, label, searches=1, constant=10, steps=30, learning_rate=0.02, **FAR
        )
        if int(model(theirs).argmax(1)) == label:
            continue  # it stopped too early
        assert float(ours.l2) <= float((theirs - image).norm()) + 1e-5
        exact += float((ours.examples - theirs).abs().max()) < 1e-5
    assert exact >= len(y) // 2
