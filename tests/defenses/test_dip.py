"""Data interpolating prediction, and random ratios in mixup inference."""

from __future__ import annotations

import torch
from torch import nn

from mixup_inference import Beta, MixupInference, Pool, get_preset, make_defense
from mixup_inference.defenses import DataInterpolatingPrediction
from mixup_inference.defenses.dip import MIXUP_RATIO

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(3, 1, 2, 2, generator=GENERATOR)
LABELS = torch.tensor([0, 1, 1, 1, 2, 2])
POOL = Pool(torch.rand(6, 1, 2, 2, generator=GENERATOR), LABELS)


class Linear(nn.Module):
    """The pixels are the log-odds, so that the mean over draws is known."""

    def forward(self, x):
        return x.flatten(1)[:, :3].clamp(min=1e-6).log()


def test_every_sample_is_as_likely_as_any_other():
    defense = DataInterpolatingPrediction(nn.Flatten(), POOL, draws=20_000)
    lam, chosen = defense.partners(torch.zeros(1, dtype=torch.int64), defense.numbers(X[:1]))
    shares = torch.bincount(chosen[0], minlength=6) / chosen.numel()
    torch.testing.assert_close(shares, torch.full((6,), 1 / 6), atol=0.01, rtol=0)
    assert abs(float(lam.mean()) - 2 / 3) < 0.01  # of Beta(2, 1)
    assert abs(float(lam.square().mean()) - 1 / 2) < 0.01


def test_the_mean_of_a_linear_model_is_known():
    """F linear in x: the mean prediction is E[lam] F(x) + (1 - E[lam]) mean F(x')."""

    def simplex(images):
        images[:, :, 1, 0] = 1 - images[:, :, 0].sum(-1)  # three pixels that sum to 1
        return images

    x, clean = simplex(X.clone() / 2), simplex(POOL.images.clone() / 2)
    defense = DataInterpolatingPrediction(Linear(), Pool(clean, LABELS), draws=20_000)
    expected = (2 * x + clean.mean(0)).flatten(1)[:, :3] / 3
    torch.testing.assert_close(defense.predict_proba(x), expected, atol=0.005, rtol=0)


def test_the_ratio_is_that_of_mixup_training():
    """E[lam l(lam) + (1 - lam) l(1 - lam)] over Beta(a, a) is E[l] over Beta(a + 1, a)."""
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for loss in (torch.exp, torch.sin, lambda t: t**3):
        symmetric = (u * loss(u) + (1 - u) * loss(1 - u)).mean()
        torch.testing.assert_close(
            loss(MIXUP_RATIO.quantile(u)).mean(), symmetric, atol=1e-4, rtol=0
        )


def test_with_the_same_pool_shares_it_is_mixup_inference():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    shares, options = torch.tensor([1, 3, 2]).double() / 6, {"draws": 9, "seed": 2}
    index = torch.arange(3)
    ours = make_defense("dip", model, POOL, lam=0.6, **options)(X, index=index)
    mixed = MixupInference(model, POOL, labels=shares, lam=0.6, **options)(X, index=index)
    assert torch.equal(ours, mixed)


def test_presets_with_random_ratios():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    defense = get_preset("ours/mixup+mi-ol-beta").build(model, POOL, draws=4)
    assert isinstance(defense, MixupInference)
    assert defense.lam == Beta(2, 2)
    assert len(defense.partners(torch.zeros(3).long(), defense.numbers(X))[0].unique()) == 12
