"""Randomised smoothing: the vote, and the certificate against closed forms and ART."""

from __future__ import annotations

import warnings

import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from mixup_inference import InputError
from mixup_inference.defenses import ABSTAIN, RandomizedSmoothing
from mixup_inference.defenses.smoothing import Certificate, lower_bound, vote

GENERATOR = torch.Generator().manual_seed(0)
SIGMA = 0.25
W = torch.randn(16, generator=GENERATOR)


class HalfSpaces(nn.Module):
    """Two classes, divided by the plane w x = 0 through the middle of the unit cube."""

    def forward(self, x):
        margin = (x.flatten(1) - 0.5) @ W
        return torch.stack([-margin, margin], dim=1) * 50


def at_distance(distances):
    """Images at so much from the plane, on either side of it."""
    away = torch.as_tensor(distances)[:, None] * (W / W.norm())
    return (0.5 + away).view(-1, 1, 4, 4)


def test_the_radius_of_a_linear_classifier_is_its_distance():
    """There the smoothed classifier is the classifier itself, so the distance is the truth."""
    distances = torch.linspace(-0.5, 0.5, 21)
    x, labels = at_distance(distances), (distances > 0).long()
    defense, found = RandomizedSmoothing(HalfSpaces(), sigma=SIGMA), []
    for n in (100, 1_000, 20_000):
        certificate = defense.certify(x, n=n)
        proven = certificate.labels != ABSTAIN
        assert torch.equal(certificate.labels[proven], labels[proven])
        assert bool((certificate.radii <= distances.abs()).all())
        assert not bool(certificate.radii[~proven].any())
        found.append(certificate.radii)
    assert bool((found[0].sum() < found[1].sum()) & (found[1].sum() < found[2].sum()))
    near = (distances.abs() >= 0.1) & (distances.abs() <= 0.5)
    assert float((distances.abs() - found[2])[near].max()) < 0.03
    assert certificate.labels[10] == ABSTAIN  # on the plane


def test_it_can_certify_at_most_what_so_many_votes_prove():
    """If all n votes agree, p = alpha^(1/n)."""
    certificate = RandomizedSmoothing(HalfSpaces(), sigma=0.01).certify(
        at_distance([0.4]), n=1000, alpha=0.001
    )
    best = 0.01 * torch.special.ndtri(torch.tensor(0.001 ** (1 / 1000), dtype=torch.float64))
    torch.testing.assert_close(certificate.radii, best[None])


def test_the_bound_fails_no_more_often_than_it_says():
    """Points at a known distance, certified with a large alpha, a thousand times."""
    defense = RandomizedSmoothing(HalfSpaces(), sigma=SIGMA)
    x = at_distance([0.2]).expand(1000, -1, -1, -1)
    radii = defense.certify(x, n=200, alpha=0.1).radii
    assert float((radii > 0.2).double().mean()) < 0.1
    assert float((radii > 0.2).double().mean()) > 0.02  # nor much more seldom


@pytest.mark.parametrize("n", [1, 50, 10_000])
def test_the_bound_is_clopper_and_pearsons(n):
    hits = torch.tensor(sorted({0, 1, n // 2, n - 1, n}))
    for alpha in (0.001, 0.05):
        theirs = [
            binomtest(int(k), n, alternative="greater").proportion_ci(1 - alpha, method="exact").low
            for k in hits
        ]
        torch.testing.assert_close(
            lower_bound(hits, n, alpha), torch.tensor(theirs, dtype=torch.float64)
        )


def test_the_certificate_agrees_with_art():
    """ART draws its own noise: the radii agree as far as two estimates do."""
    pytest.importorskip("statsmodels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    x = at_distance([-0.3, -0.15, 0.1, 0.25])
    peer = PyTorchRandomizedSmoothing(
        HalfSpaces(), nn.CrossEntropyLoss(), (1, 4, 4), 2, sample_size=100, scale=SIGMA,
        alpha=0.001, device_type="cpu",
    )  # fmt: skip
    labels, radii = peer.certify(x.numpy(), n=5000)
    ours = RandomizedSmoothing(HalfSpaces(), sigma=SIGMA).certify(x, n=5000)
    assert ours.labels.tolist() == labels.tolist()
    torch.testing.assert_close(ours.radii, torch.from_numpy(radii), atol=0.03, rtol=0)


def test_the_answer_is_the_majority_with_ties_broken_by_the_mean():
    p = torch.tensor(
        [
            [[0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.0, 1.0, 0.0]],  # the mean says 1, the vote 0
            [[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]],  # a tie
        ]
    )
    found = vote((p + 1e-30).log())
    assert found.argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(found.exp().sum(1), torch.ones(2))
    expected = (torch.tensor([[2.0, 1, 0], [1, 1, 1]]) + p.mean(1)) / 4
    torch.testing.assert_close(found.exp(), expected)
    certain = torch.tensor([[[0.0, -2000.0]]])
    assert bool(vote(certain).isfinite().all())


def test_the_gradient_is_that_of_the_mean_prediction():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(2, 1, 4, 4, generator=GENERATOR).requires_grad_()
    defense, index = RandomizedSmoothing(model, sigma=SIGMA, draws=8), torch.arange(2)
    soft = defense.draw(x, 8, index=index).exp().mean(1).log()
    expected = torch.autograd.grad(soft[:, 0].sum(), x)
    ours = torch.autograd.grad(defense(x, index=index)[:, 0].sum(), x)
    torch.testing.assert_close(ours, expected)


@pytest.mark.usefixtures("same_global_state")
def test_a_certificate_does_not_depend_on_the_batch():
    x, index = at_distance([-0.3, 0.05, 0.1]), torch.tensor([7, 1, 5])
    defense = RandomizedSmoothing(HalfSpaces(), sigma=SIGMA)
    whole = defense.certify(x, n=300, index=index)
    defense.chunk = 70
    alone = [defense.certify(x[r : r + 1], n=300, index=index[r : r + 1]) for r in range(3)]
    assert torch.equal(whole.labels, torch.cat([c.labels for c in alone]))
    torch.testing.assert_close(whole.radii, torch.cat([c.radii for c in alone]))


def test_certified_accuracy():
    certificate = Certificate(torch.tensor([0, 1, ABSTAIN, 1]), torch.tensor([0.5, 0.2, 0.0, 0.9]))
    y = torch.tensor([0, 1, 1, 0])
    assert [certificate.accuracy(y, r) for r in (0, 0.2, 0.3, 0.6)] == [0.5, 0.5, 0.25, 0.0]


def test_bad_settings():
    defense = RandomizedSmoothing(HalfSpaces())
    with pytest.raises(InputError, match="n0 must be at least 1"):
        defense.certify(at_distance([0.1]), n0=0)
    with pytest.raises(InputError, match="alpha must be in"):
        defense.certify(at_distance([0.1]), alpha=2)
    for alpha in (0, 1):  # with 1, any radius would be "proven"
        with pytest.raises(InputError, match="alpha must be in"):
            defense.certify(at_distance([0.1]), alpha=alpha)
    with pytest.raises(InputError, match="2 labels for 1 images"):
        Certificate(torch.tensor([0]), torch.tensor([0.5])).accuracy(torch.tensor([0, 1]))
