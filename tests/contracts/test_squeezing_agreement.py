"""Squeezers against scipy and ART, and non-local means against its definition, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from art.defences.preprocessor import FeatureSqueezing, SpatialSmoothing
from scipy import ndimage

from mixup_inference.defenses.filters import median_filter, non_local_means, quantize
from mixup_inference.detection.scores import squeezed

torch.manual_seed(0)
GREY, COLOUR = torch.rand(4, 1, 8, 8), torch.rand(3, 3, 7, 5)


@pytest.mark.parametrize("bits", [1, 4, 5, 8])
@pytest.mark.parametrize("x", [GREY, COLOUR])
def test_bit_depth_is_arts(x, bits):
    theirs, _ = FeatureSqueezing(clip_values=(0, 1), bit_depth=bits)(x.numpy())
    torch.testing.assert_close(quantize(x, 2**bits - 1), torch.from_numpy(theirs).float())
    assert len(quantize(x, 2**bits - 1).unique()) <= 2**bits


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("x", [GREY, COLOUR])
def test_the_median_is_scipys_and_arts(x, size):
    ours = median_filter(x, size)
    scipys = ndimage.median_filter(x.numpy(), size=(1, 1, size, size), mode="reflect")
    assert torch.equal(ours, torch.from_numpy(scipys))
    arts, _ = SpatialSmoothing(window_size=size, channels_first=True)(x.numpy())
    assert torch.equal(ours, torch.from_numpy(arts))


@pytest.mark.parametrize(("search", "patch", "strength"), [(5, 3, 0.2), (13, 3, 0.5), (3, 1, 0.1)])
def test_non_local_means_by_definition(search, patch, strength):
    x = COLOUR[:1].double()
    far, near = search // 2, patch // 2
    padded = np.pad(x[0].numpy(), ((0, 0), *2 * ((far + near, far + near),)), mode="symmetric")

    def surroundings(row, column):
        return padded[:, row - near : row + near + 1, column - near : column + near + 1]

    expected = np.zeros(x.shape[1:])
    for row in range(7):
        for column in range(5):
            r, c, total = row + far + near, column + far + near, 0.0
            for i in range(r - far, r + far + 1):
                for j in range(c - far, c + far + 1):
                    d2 = ((surroundings(r, c) - surroundings(i, j)) ** 2).mean()
                    weight = np.exp(-d2 / strength**2)
                    expected[:, row, column] += weight * padded[:, i, j]
                    total += weight
            expected[:, row, column] /= total
    found = non_local_means(x, search, patch, strength)
    torch.testing.assert_close(found[0], torch.from_numpy(expected))


def test_non_local_means_at_its_ends():
    flat = torch.full((1, 3, 6, 6), 0.3)
    torch.testing.assert_close(non_local_means(flat), flat)
    torch.testing.assert_close(non_local_means(COLOUR, strength=1e-3), COLOUR)  # nothing is alike
    wide = non_local_means(COLOUR.double(), 3, 1, 1e6)  # all is alike: the mean of the window
    mean = ndimage.uniform_filter(COLOUR.double().numpy(), size=(1, 1, 3, 3), mode="reflect")
    torch.testing.assert_close(wide, torch.from_numpy(mean))


def test_the_ways_depend_on_the_channels_and_pass_gradients():
    assert squeezed(GREY).shape == (4, 2, 1, 8, 8)
    assert squeezed(COLOUR).shape == (3, 3, 3, 7, 5)
    for x in (GREY, COLOUR):
        leaf = x.clone().requires_grad_()
        for way in squeezed(leaf).unbind(1):
            (gradient,) = torch.autograd.grad(way.sum(), leaf, retain_graph=True)
            assert bool((gradient.flatten(1).norm(dim=1) > 0).all())
    (straight,) = torch.autograd.grad(quantize(leaf, 1).sum(), leaf)
    assert torch.equal(straight, torch.ones_like(leaf))
