from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from mixup_inference import pgd
from mixup_inference.draws import derive_seed
from mixup_inference.training import Recipe
from mixup_inference.training.batches import augment
from mixup_inference.training.objectives import OBJECTIVES, Batch

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
X = torch.rand(600, 1, 4, 4).double()
Y = torch.arange(600) % 3
BATCH = Batch(X, Y, torch.arange(600) + 50, epoch=2)
HOT = functional.one_hot(Y, 3).double()


def examples(name, **settings):
    return OBJECTIVES[name].function(MODEL, BATCH, Recipe(objective=name, **settings), 3)


def recover(mixed, original):
    """lam and the partner of each row, from the images alone.

    A row that hardly moved (lam near 1, or mixed with itself) is said to be its own partner.
    """
    flat, lam, partner = original.flatten(1), [], []
    for i, row in enumerate(mixed.flatten(1)):
        direction, moved = flat - flat[i], row - flat[i]
        if float(moved.norm()) < 1e-6:
            lam.append(1.0)
            partner.append(i)
            continue
        share = (direction @ moved) / direction.pow(2).sum(1).clamp(min=1e-12)
        miss = (share[:, None] * direction - moved).norm(dim=1)
        miss[i] = torch.inf
        best = int(miss.argmin())
        assert float(miss[best]) < 1e-9
        lam.append(1 - float(share[best]))
        partner.append(best)
    return torch.tensor(lam).double(), torch.tensor(partner)


def test_erm_is_plain_cross_entropy():
    e = examples("erm")
    logits = MODEL(X)
    torch.testing.assert_close(e.loss(logits), functional.cross_entropy(logits, Y))
    assert float(e.accuracy(logits)) == pytest.approx(
        float((logits.argmax(1) == Y).double().mean())
    )


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_mixup_mixes_images_and_labels_alike_with_a_ratio_per_sample(alpha):
    e = examples("mixup", alpha=alpha)
    lam, partner = recover(e.x, X)
    moved = partner != torch.arange(600)
    assert int(moved.sum()) > 590
    assert partner[moved].unique().numel() == int(moved.sum())  # a permutation of the batch
    torch.testing.assert_close(e.targets, lam[:, None] * HOT + (1 - lam)[:, None] * HOT[partner])
    assert stats.kstest(lam.numpy(), stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    logits = MODEL(e.x)
    expected = -(e.targets * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(e.loss(logits), expected)


def test_mixup_with_one_ratio_for_the_batch():
    e = examples("mixup", ratio="batch")
    lam, partner = recover(e.x, X)
    moved = partner != torch.arange(600)
    assert int(moved.sum()) > 590
    one = lam[moved].mean()
    assert 0 < float(one) < 1
    torch.testing.assert_close(lam[moved], one.expand_as(lam[moved]))
    torch.testing.assert_close(e.targets, one * HOT + (1 - one) * HOT[partner])


def adversarial(recipe):
    return pgd(
        MODEL, X, Y, eps=recipe.eps, step=recipe.step, steps=recipe.steps,
        seed=derive_seed(0, "inner attack", 2), index=BATCH.index,
    )  # fmt: skip


def test_mixup_with_one_ratio_for_all():
    e = examples("mixup", lam=0.75)
    lam, partner = recover(e.x, X)
    moved = partner != torch.arange(600)
    torch.testing.assert_close(lam[moved], torch.full_like(lam[moved], 0.75))
    torch.testing.assert_close(e.targets, 0.75 * HOT + 0.25 * HOT[partner])
    drawn = recover(examples("mixup").x, X)[1]  # the partners do not depend on the ratio
    clear = moved & (drawn != torch.arange(600))
    assert int(clear.sum()) > 500
    assert torch.equal(partner[clear], drawn[clear])


def test_at_is_half_adversarial_half_clean():
    e = examples("at")
    images = adversarial(Recipe(objective="at"))
    torch.testing.assert_close(e.x, torch.cat([images, X]))
    logits = MODEL(e.x)
    expected = 0.5 * functional.cross_entropy(logits[:600], Y) + 0.5 * functional.cross_entropy(
        logits[600:], Y
    )
    torch.testing.assert_close(e.loss(logits), expected)
    assert float((MODEL(images).argmax(1) == Y).double().mean()) < float(
        (MODEL(X).argmax(1) == Y).double().mean()
    )


def test_iat_mixes_the_two_halves_separately():
    e = examples("iat")
    images = adversarial(Recipe(objective="iat"))
    lam_a, partner_a = recover(e.x[:600], images)
    lam_c, partner_c = recover(e.x[600:], X)
    assert not torch.equal(partner_a, partner_c)
    assert abs(float(torch.corrcoef(torch.stack((lam_a, lam_c)))[0, 1])) < 0.2
    for rows, lam, partner in (
        (slice(600), lam_a, partner_a),
        (slice(600, None), lam_c, partner_c),
    ):
        expected = lam[:, None] * HOT + (1 - lam)[:, None] * HOT[partner]
        torch.testing.assert_close(e.targets[rows], expected)


def test_adv_ratio_weighs_the_halves():
    e = examples("at", adv_ratio=0.3)
    assert float(e.weights[:600].sum()) == pytest.approx(0.3)
    assert float(e.weights[600:].sum()) == pytest.approx(0.7)
    assert len(examples("at", adv_ratio=1.0).x) == 600
    torch.testing.assert_close(examples("iat", adv_ratio=0.0).x, examples("mixup").x)


def test_ratios_and_partners_follow_epoch_and_seed():
    first = examples("mixup").x
    assert not torch.equal(first, examples("mixup", seed=1).x)
    later = Batch(X, Y, BATCH.index, epoch=3)
    assert not torch.equal(first, OBJECTIVES["mixup"].function(MODEL, later, Recipe(), 3).x)


@pytest.mark.usefixtures("same_global_state")
def test_augmentation_flips_and_shifts_each_sample_on_its_own():
    x = torch.rand(300, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    index = torch.arange(300)
    settings = {"epoch": 1, "seed": 0}
    flipped = augment(x, index, flip=True, padding=0, **settings)
    is_flipped = (flipped == x.flip(-1)).flatten(1).all(1)
    is_same = (flipped == x).flatten(1).all(1)
    assert bool((is_flipped ^ is_same).all())
    assert 110 < int(is_flipped.sum()) < 190
    shifted = augment(x, index, flip=False, padding=1, **settings)
    padded = functional.pad(x, (1, 1, 1, 1))
    windows = torch.stack(
        [padded[..., i : i + 6, j : j + 6] for i in range(3) for j in range(3)], dim=1
    )
    match = (windows == shifted[:, None]).flatten(2).all(2)
    assert bool((match.sum(1) == 1).all())
    assert (match.sum(0) > 10).all()  # all nine places occur, about 33 times each
    part = augment(x[5:9], index[5:9], flip=False, padding=1, **settings)
    assert torch.equal(part, shifted[5:9])
