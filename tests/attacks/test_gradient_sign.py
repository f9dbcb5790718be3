"""FGSM, BIM and MI-FGSM where the answer is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import MixupInference, Pool
from mixup_inference.attacks import bim, eot_pgd, fgsm, momentum
from mixup_inference.attacks.threat_model import ThreatModel, gradient_ascent

torch.manual_seed(1)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
X = 0.3 + 0.4 * torch.rand(5, 1, 4, 4, dtype=torch.float64)
Y = torch.arange(5) % 3


def test_fgsm_is_the_sign_of_the_gradient_by_hand():
    """The gradient of cross-entropy in a linear model is W^T (p - onehot)."""
    p = MODEL(X).softmax(1) - nn.functional.one_hot(Y, 3)
    by_hand = (p @ MODEL[1].weight).view_as(X)
    found = fgsm(MODEL, X, Y, eps=0.05)
    torch.testing.assert_close(found.examples, X + 0.05 * by_hand.sign())
    l2 = fgsm(MODEL, X, Y, eps=0.05, norm="l2")
    unit = by_hand / by_hand.flatten(1).norm(dim=1)[:, None, None, None]
    torch.testing.assert_close(l2.examples, X + 0.05 * unit)
    assert (found.forward, found.backward) == (10, 5)


def test_fgsm_is_one_step_of_bim_and_bim_is_pgd_from_x():
    pool = Pool(torch.rand(6, 1, 4, 4, dtype=torch.float64), torch.arange(6) % 3)
    mi = MixupInference(MODEL, pool, draws=4)
    one = bim(mi, X, Y, eps=0.1, steps=1, step=0.1)
    assert torch.equal(one.examples, fgsm(mi, X, Y, eps=0.1).examples)
    many = bim(mi, X, Y, eps=0.1, steps=6)
    pgd = eot_pgd(mi, X, Y, eps=0.1, steps=6, random_start=False)
    assert torch.equal(many.examples, pgd.examples)
    assert torch.equal(many.trace, pgd.trace)


def test_momentum_without_decay_is_bim_and_with_it_eot_pgds():
    same = {"eps": 0.1, "steps": 6, "step": 0.03}
    assert torch.equal(
        momentum(MODEL, X, Y, decay=0.0, **same).examples, bim(MODEL, X, Y, **same).examples
    )
    default = momentum(MODEL, X, Y, eps=0.1, steps=5)
    by_pgd = eot_pgd(MODEL, X, Y, eps=0.1, steps=5, step=0.02, momentum=1.0, random_start=False)
    assert torch.equal(default.examples, by_pgd.examples)


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_momentum_outweighs_a_gradient_that_turns(decay):
    """g_1 = 1, g_2 = decay - 1/2, by hand, when the second gradient is half against the first."""
    x = torch.full((1, 1, 1, 2), 0.5)
    gradients = [torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[[[-2.0, 2.0]]]])]
    path = list(
        gradient_ascent(
            x, x, ThreatModel("linf", 0.4), lambda _, n: gradients[n], [0.1, 0.1], momentum=decay
        )
    )
    second = torch.tensor([decay - 0.5, 0.5]).sign()
    torch.testing.assert_close(path[1], x + torch.tensor([0.1, 0.0]))
    torch.testing.assert_close(path[2], path[1] + 0.1 * second)
