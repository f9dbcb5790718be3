"""Total variation minimisation, against scikit-image and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mixup_inference.defenses import TotalVariationMinimization
from mixup_inference.defenses.total_variation import minimize_total_variation

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
X = torch.tensor([[(3 * r + 5 * c + r * c) % 11 for c in range(6)] for r in range(5)]).double() / 10

# denoise_tv_chambolle(X, weight=0.1, eps=1e-14, max_num_iter=20000) of scikit-image 0.26.0
SKIMAGE = torch.tensor(
    [
        [0.137399, 0.548108, 0.768561, 0.613193, 0.693957, 0.288527],
        [0.387127, 0.654667, 0.617827, 0.693277, 0.480969, 0.283688],
        [0.571427, 0.490438, 0.642734, 0.493858, 0.35193, 0.530234],
        [0.693715, 0.584612, 0.464815, 0.282692, 0.535031, 0.525112],
        [0.29643, 0.724131, 0.71874, 0.530004, 0.496796, 0.4],
    ]
).double()


def test_equals_scikit_image():
    ours = minimize_total_variation(X, weight=0.1, steps=3000)
    torch.testing.assert_close(ours, SKIMAGE, atol=1e-5, rtol=0)


@pytest.mark.parametrize("weight", [0.03, 0.3])
def test_equals_the_scikit_image_that_is_installed(weight):
    restoration = pytest.importorskip("skimage.restoration")
    x = torch.rand(3, 9, 7, generator=torch.Generator().manual_seed(0)).double()
    theirs = [
        restoration.denoise_tv_chambolle(i.numpy(), weight=weight, eps=1e-14, max_num_iter=20_000)
        for i in x
    ]
    ours = minimize_total_variation(x, weight=weight, steps=10_000)
    torch.testing.assert_close(ours, torch.from_numpy(np.stack(theirs)), atol=1e-4, rtol=0)


def test_a_step_loses_what_the_formula_says():
    """Two halves of width 4 approach each other by weight / 4; a wide one by less."""
    for width in (4, 10):
        x = torch.zeros(1, 6, 4 + width).double()
        x[..., 4:] = 1.0
        found = minimize_total_variation(x, weight=0.2, steps=4000)
        expected = torch.where(x > 0, 1 - 0.2 / width, 0.2 / 4).double()
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_minimum_with_dropped_pixels_is_a_minimum():
    """No small change lowers the objective, and none does better than the default steps by much."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, 8, 8, generator=generator).double()
    kept = torch.rand(1, 8, 8, generator=generator) > 0.5

    def objective(z):
        down, right = torch.zeros_like(z), torch.zeros_like(z)
        down[:, :-1], right[:, :, :-1] = z.diff(dim=1), z.diff(dim=2)
        return float(((z - x)[kept] ** 2).sum() / 2 + 0.03 * torch.hypot(down, right).sum())

    found = minimize_total_variation(x, kept, weight=0.03, steps=5000)
    best = objective(found)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(50):
            change = size * torch.randn(x.shape, generator=generator).double()
            assert objective(found + change) >= best - 1e-7
    soon = minimize_total_variation(x, kept, weight=0.03, steps=40)
    assert objective(soon) < 1.05 * best


def test_dropped_values_do_not_matter():
    generator = torch.Generator().manual_seed(2)
    x, other = torch.rand(2, 1, 8, 8, generator=generator)
    kept = torch.rand(1, 8, 8, generator=generator) > 0.5
    found = [
        minimize_total_variation(z, kept, weight=0.03, steps=30)
        for z in (x, torch.where(kept, x, other))
    ]
    assert torch.equal(*found)
    flat = minimize_total_variation(torch.full((1, 8, 8), 0.3), kept, weight=0.03, steps=30)
    torch.testing.assert_close(flat, torch.full((1, 8, 8), 0.3))
    assert not minimize_total_variation(x, torch.zeros_like(kept), weight=0.03, steps=30).any()


def test_neutral_settings_and_the_surrogate_gradient():
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    defense = TotalVariationMinimization(MODEL, weight=0.0, drop=0.0, draws=2)
    torch.testing.assert_close(defense(x), MODEL(x).log_softmax(1))
    strong = TotalVariationMinimization(MODEL, draws=5)
    x.requires_grad_()
    images = strong.transform(x, None, strong.numbers(x))
    assert images.shape == (2, 5, 3, 4, 4)
    (gradient,) = torch.autograd.grad(images.sum(), x)
    assert torch.equal(gradient, torch.full_like(x, 5.0))
    shown = images.detach()
    assert -1e-6 <= float(shown.min()) <= float(shown.max()) <= 1 + 1e-6
    assert len(torch.unique(shown.flatten(0, 1), dim=0)) == 10  # each draw drops others
