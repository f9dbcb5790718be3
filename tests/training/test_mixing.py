"""Label smoothing, CutMix, SamplePairing, between-class learning and MIT against their formulas."""

from __future__ import annotations

import math

import kornia
import numpy as np
import pytest
import torch
from art.defences.preprocessor import LabelSmoothing
from kornia.constants import DType
from scipy import stats
from torch import nn
from torch.nn import functional

from mixup_inference.training import OBJECTIVES, Batch, Recipe
from mixup_inference.training.mixing import pairing_is_on

COUNT, CLASSES, SIDE = 300, 3, 8
X = torch.rand(COUNT, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(COUNT) % CLASSES
HOT = functional.one_hot(Y, CLASSES).double()
BATCH = Batch(X, Y, torch.arange(COUNT) + 50, epoch=2)
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(2 * SIDE * SIDE, CLASSES)).double()


def examples(name, batch=BATCH, **settings):
    recipe = Recipe(objective=name, **settings)
    return OBJECTIVES[name].function(LINEAR, batch, recipe, CLASSES)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_torch_and_of_art(smoothing):
    e, logits = examples("label-smoothing", smoothing=smoothing), LINEAR(X)
    assert torch.equal(e.x, X)
    expected = functional.cross_entropy(logits, Y, label_smoothing=smoothing)
    torch.testing.assert_close(e.loss(logits), expected)
    theirs = LabelSmoothing(max_value=1 - smoothing + smoothing / CLASSES)
    _, targets = theirs(X.numpy(), HOT.numpy())
    np.testing.assert_allclose(e.targets, targets, atol=1e-12)


def boxes(mixed):
    """The box (top, bottom, left, right) and the partner of each row, from the images alone."""
    found = []
    for row, (image, mine) in enumerate(zip(mixed, X, strict=True)):
        inside = (image != mine).all(0)
        rows, columns = inside.any(1).nonzero(), inside.any(0).nonzero()
        if not len(rows):
            found.append((0, 0, 0, 0, row))
            continue
        top, bottom = int(rows.min()), int(rows.max()) + 1
        left, right = int(columns.min()), int(columns.max()) + 1
        assert bool(inside[top:bottom, left:right].all())
        assert int(inside.sum()) == (bottom - top) * (right - left)
        same = (X[:, :, inside] == image[:, inside]).flatten(1).all(1)
        found.append((top, bottom, left, right, int(same.nonzero())))
    return torch.tensor(found)


def test_cutmix_pastes_a_box_and_mixes_labels_by_its_area():
    e = examples("cutmix")
    top, bottom, left, right, partner = boxes(e.x).T
    lam = 1 - (bottom - top) * (right - left) / SIDE**2
    torch.testing.assert_close(e.targets, lam[:, None] * HOT + (1 - lam)[:, None] * HOT[partner])
    moved = partner != torch.arange(COUNT)
    assert int(moved.sum()) > 0.8 * COUNT
    assert partner[moved].unique().numel() == int(moved.sum())  # a permutation of the batch
    assert len(lam.unique()) > 10
    assert {*top.tolist()} == {*range(SIDE - 1)}
    assert {*right[moved].tolist()} >= {*range(2, SIDE + 1)}


def test_cutmix_is_that_of_kornia():
    """Given the boxes and the partners, which are drawn otherwise there."""
    e = examples("cutmix")
    found = boxes(e.x)
    top, bottom, left, right, partner = found[(kept := found[:, 1] > 0)].T
    corners = ((left, top), (right - 1, top), (right - 1, bottom - 1), (left, bottom - 1))
    crop = torch.stack([torch.stack(point, 1) for point in corners], 1).double()
    theirs = kornia.augmentation.RandomCutMixV2(use_correct_lambda=True)
    both = torch.cat((X[kept], X[partner]))
    half = len(crop)
    params = {
        "mix_pairs": (torch.arange(2 * half) + half)[None] % (2 * half),
        "crop_src": torch.cat((crop, crop))[None],
        "image_shape": torch.tensor([SIDE, SIDE]),
        "dtype": torch.tensor(DType.get(torch.float64).value),
    }
    images = theirs.apply_transform(both, params)[:half]
    assert torch.equal(images, e.x[kept])
    labels = theirs.apply_transform_class(torch.cat((Y[kept], Y[partner])), params, {})[0, :half]
    expected = labels[:, 2:] * HOT[labels[:, 0].long()]
    expected += (1 - labels[:, 2:]) * HOT[labels[:, 1].long()]
    torch.testing.assert_close(e.targets[kept], expected)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.75, 0.99])
def test_cutmix_rounds_the_box_as_the_published_code(lam):
    found = boxes(examples("cutmix", lam=lam).x)
    half = int(SIDE * math.sqrt(1 - lam)) // 2
    whole = found[(found[:, 0] > 0) & (found[:, 1] < SIDE) & (found[:, 1] > 0)]
    assert set((whole[:, 1] - whole[:, 0]).tolist()) <= {2 * half}
    assert int((found[:, 1] - found[:, 0]).max()) == 2 * half


def test_cutmix_with_one_box_for_the_batch():
    found = boxes(examples("cutmix", ratio="batch", lam=0.5).x)
    assert len(found[found[:, 1] > 0][:, :4].unique(dim=0)) == 1


def test_sample_pairing_averages_and_keeps_the_label():
    e = examples("sample-pairing", epochs=10)
    other = 2 * e.x - X
    partner = (other[:, None] - X).abs().flatten(2).amax(2).argmin(1)
    torch.testing.assert_close(e.x, (X + X[partner]) / 2)
    assert len(partner.unique()) == COUNT
    assert torch.equal(e.targets, HOT)


def test_sample_pairing_is_off_at_times():
    on = [pairing_is_on(epoch, 1000) for epoch in range(1000)]
    expected = [100 <= epoch < 800 and (epoch - 100) % 10 < 8 for epoch in range(1000)]
    assert on == expected
    assert torch.equal(examples("sample-pairing", epochs=100).x, X)  # epoch 2 of 100
    assert pairing_is_on(0, 1)


def between(x1, x2, r):
    """The formula, for two images, in NumPy."""
    x1, x2 = x1.numpy(), x2.numpy()
    p = 1 / (1 + np.std(x1) / np.std(x2) * (1 - r) / r)
    zero = (p * (x1 - x1.mean()) + (1 - p) * (x2 - x2.mean())) / np.sqrt(p**2 + (1 - p) ** 2)
    return torch.from_numpy(zero + p * x1.mean() + (1 - p) * x2.mean())


def test_between_class_is_its_formula_for_images_of_different_classes():
    scale = torch.linspace(0.1, 1.0, COUNT)[:, None, None, None].double()  # other contrasts
    x = X * scale
    e = examples("between-class", Batch(x, Y, BATCH.index, 2))
    r = e.targets.gather(1, Y[:, None])[:, 0]
    assert bool(((e.targets > 0).sum(1) == 2).all())  # never of one class
    theirs = e.targets.scatter(1, Y[:, None], 0).argmax(1)
    torch.testing.assert_close(e.targets, r[:, None] * HOT + (1 - r)[:, None] * HOT[theirs])
    assert stats.kstest(r.numpy(), stats.uniform().cdf).pvalue > 1e-3
    partners = []
    for row in range(0, COUNT, 10):
        candidates = (theirs[row] == Y).nonzero()[:, 0]
        errors = [
            float((between(x[row], x[other], float(r[row])) - e.x[row]).abs().max())
            for other in candidates
        ]
        assert min(errors) < 1e-9
        partners.append(int(candidates[int(np.argmin(errors))]))
    assert len(set(partners)) > 20


def test_between_class_leaves_a_batch_of_one_class_alone():
    e = examples("between-class", Batch(X, torch.zeros_like(Y), BATCH.index, 2))
    torch.testing.assert_close(e.x, X)
    assert bool((e.targets[:, 0] == 1).all())
    flat = examples("between-class", Batch(torch.full_like(X, 0.5), Y, BATCH.index, 2))
    torch.testing.assert_close(flat.x, torch.full_like(X, 0.5))  # no contrast, and no NaN


def ratios(e):
    return e.first, e.second


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_mit_on_a_linear_model_is_the_loss_of_the_unmixed_images(margin):
    e = examples("mit", margin=margin)
    l1, l2 = ratios(e)
    assert float((l1 - l2).min()) >= margin
    assert float(l1.min()) >= 0.5 >= float(l2.max())
    one, two = e.x.chunk(2)
    # Solve the two mixtures for the two images.
    column = (l1 - l2)[:, None, None, None]
    a = ((1 - l2)[:, None, None, None] * one - (1 - l1)[:, None, None, None] * two) / column
    b = (l1[:, None, None, None] * two - l2[:, None, None, None] * one) / column
    torch.testing.assert_close(a, X)
    partner = (b[:, None] - X).abs().flatten(2).amax(2).argmin(1)
    torch.testing.assert_close(b, X[partner])
    assert len(partner.unique()) == COUNT
    torch.testing.assert_close(e.targets, torch.cat((HOT, HOT[partner])))
    expected = 0.5 * functional.cross_entropy(LINEAR(X), Y)
    expected = expected + 0.5 * functional.cross_entropy(LINEAR(X[partner]), Y[partner])
    torch.testing.assert_close(e.loss(e.logits(LINEAR)), expected)


def test_mit_decouples_as_the_published_code():
    """There the two equations are solved by elimination, one after the other."""
    model = nn.Sequential(LINEAR, nn.Tanh(), nn.Linear(CLASSES, CLASSES).double())
    e = examples("mit")
    l1, l2 = (lam[:, None] for lam in ratios(e))
    one, two = model(e.x).chunk(2)
    share = (1 - l1) / (1 - l2)
    a = (one - share * two) / (l1 - l2 * share)
    share = l2 / l1
    b = (two - share * one) / (1 - l2 - (1 - l1) * share)
    torch.testing.assert_close(e.logits(model), torch.cat((a, b)))


def test_mit_draws_its_ratios_from_beta():
    l1, l2 = ratios(examples("mit", margin=0.0, alpha=0.4))
    half = stats.beta(0.4, 0.4).cdf
    assert stats.kstest(l1.numpy(), lambda v: 2 * half(v) - 1).pvalue > 1e-3
    assert stats.kstest(l2.numpy(), lambda v: 2 * half(v)).pvalue > 1e-3
    same = ratios(examples("mit", ratio="batch"))
    assert all(len(lam.unique()) == 1 for lam in same)
    widest = ratios(examples("mit", margin=1.0))
    assert bool((widest[0] - widest[1] > 0.7).all())
