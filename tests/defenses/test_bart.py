"""BaRT: each transform against another implementation, and which transforms a draw takes."""

from __future__ import annotations

from collections import Counter

import kornia
import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import nn

from mixup_inference import InputError
from mixup_inference.defenses import BarrageOfTransforms
from mixup_inference.defenses.bart import color_spaces as colors
from mixup_inference.defenses.bart import plan
from mixup_inference.defenses.bart.groups import COLOR_ONLY, GROUPS
from mixup_inference.defenses.bart.transforms import (
    equalize,
    mean_filter,
    mix_grey,
    perturb_spectrum,
    stretch,
    swirl,
)
from mixup_inference.defenses.filters import median_filter
from mixup_inference.draws import Draws, make_key

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(4, 3, 10, 12, generator=GENERATOR)
MODEL = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))
GREY = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 3))
MEMBERS = [(group, name) for group, members in GROUPS.items() for name in members]
each = pytest.mark.parametrize(("group", "name"), MEMBERS)


def draws(count, seed=0):
    return Draws.once(make_key(seed), torch.arange(count))


def column(*numbers):
    return torch.tensor(numbers).view(-1, 1, 1, 1)


def close(ours, theirs, atol=1e-5):
    torch.testing.assert_close(ours, torch.as_tensor(theirs).to(ours), atol=atol, rtol=0)


# Colour spaces


def test_color_spaces_are_those_of_kornia():
    hue, *rest = kornia.color.rgb_to_hsv(X).unbind(1)
    close(colors.rgb_to_hsv(X), torch.stack([hue / (2 * torch.pi), *rest], dim=1))
    linear = kornia.color.rgb_to_linear_rgb(X)
    close(colors.rgb_to_xyz(X), kornia.color.rgb_to_xyz(linear))
    close(colors.rgb_to_lab(X), kornia.color.rgb_to_lab(X), atol=0.01)
    close(colors.rgb_to_yuv(X), kornia.color.rgb_to_yuv(X), atol=0.001)


@pytest.mark.parametrize("space", ["hsv", "xyz", "lab", "yuv"])
def test_color_spaces_there_and_back(space):
    there, back = getattr(colors, f"rgb_to_{space}"), getattr(colors, f"{space}_to_rgb")
    corners = torch.cartesian_prod(*3 * [torch.tensor([0.0, 0.02, 1.0])]).T.reshape(1, 3, 3, 9)
    for x in (X, corners):
        close(back(there(x)), x, atol=1e-4)


@pytest.mark.parametrize("space", ["hsv", "xyz", "lab", "yuv"])
def test_color_spaces_equal_scikit_image(space):
    color = pytest.importorskip("skimage.color")
    theirs = getattr(color, f"rgb2{space}")(X.double().numpy(), channel_axis=1)
    close(getattr(colors, f"rgb_to_{space}")(X.double()), theirs, atol=1e-4)


# Transforms


def test_a_swirl_of_constant_angle_is_a_rotation():
    """With an enormous radius the angle does not fall off."""
    angle = torch.tensor([0.3, -1.0, 0.0, 2.0])
    middle = column(*4 * [4.5]), column(*4 * [5.5])
    ours = swirl(X, angle.view(-1, 1, 1, 1), *middle, column(*4 * [1e9]))
    theirs = kornia.geometry.rotate(
        X, torch.rad2deg(angle), padding_mode="border", align_corners=True
    )
    close(ours, theirs, atol=1e-4)
    far = swirl(X, column(*4 * [2.0]), *middle, column(*4 * [1e-3]))
    close(far, X)  # with a tiny radius only the centre turns


def test_swirl_equals_scikit_image():
    transform = pytest.importorskip("skimage.transform")
    for strength, row, col, radius in ((1.5, 4.0, 6.0, 8.0), (0.5, 0.0, 11.0, 3.0)):
        where = (column(*4 * [number]) for number in (strength, row, col, radius))
        ours = swirl(X.double(), *where)
        theirs = [
            [
                transform.swirl(c.double().numpy(), (col, row), strength, radius, mode="edge")
                for c in i
            ]
            for i in X
        ]
        close(ours, np.array(theirs))


def test_the_spectrum_equals_numpys():
    keep = torch.rand(4, 3, generator=GENERATOR) * 0.95
    factor = 0.98 + 0.04 * torch.rand(4, 1, 10, 12, generator=GENERATOR)
    spared = torch.rand(X.shape, generator=GENERATOR) < 0.3
    ours = perturb_spectrum(X, keep, spared, factor)
    for row in range(4):
        for c in range(3):
            spectrum = np.fft.fft2(X[row, c].double().numpy())
            k, gone = float(keep[row, c]), np.zeros((10, 12), dtype=bool)
            gone[max(1, int(10 * k)) : int(10 * (1 - k))] = True
            gone[:, max(1, int(12 * k)) : int(12 * (1 - k))] = True
            spectrum[gone & ~spared[row, c].numpy()] = 0
            close(ours[row, c], np.fft.ifft2(spectrum * factor[row, 0].numpy()).real)
    whole = perturb_spectrum(X, torch.full((4, 3), 0.5), spared, torch.ones(1))
    close(whole, X)
    mean = perturb_spectrum(X, torch.zeros(4, 3), torch.zeros_like(spared), torch.ones(1))
    close(mean.mean((2, 3)), X.mean((2, 3)))


def test_mixing_with_grey():
    shares = torch.tensor([[0.299, 0.587, 0.114]]).expand(4, -1)
    weights = torch.tensor([[1.0, 1, 1], [0, 0, 0], [0.5, 0, 1], [0.1, 0.2, 0.3]])
    ours, grey = mix_grey(X, shares, weights), kornia.color.rgb_to_grayscale(X)
    close(ours[0], grey[0].expand(3, -1, -1))
    close(ours[1], X[1])
    for row in (2, 3):
        w = weights[row][:, None, None]
        close(ours[row], w * grey[row] + (1 - w) * X[row])


def test_histogram_equalisation_equals_numpys():
    bins = torch.tensor([40, 256, 7, 100])
    ours = equalize(X.double(), bins)
    for row in range(4):
        for c in range(3):
            channel = X[row, c].double().numpy()
            count, edges = np.histogram(channel, bins=int(bins[row]))
            share = count.cumsum() / channel.size
            middles = (edges[1:] + edges[:-1]) / 2
            close(ours[row, c], np.interp(channel, middles, share), atol=1e-9)
    flat = torch.full((1, 1, 4, 4), 0.3)
    assert torch.equal(equalize(flat, torch.tensor([50])), flat)


@pytest.mark.parametrize("whole", [False, True])
def test_contrast_stretching_equals_numpys_percentiles(whole):
    low = torch.linspace(0.01, 0.04, 12).view(4, 3)
    high = 1 - low
    ours = stretch(X, low[:, :1], high[:, :1]) if whole else stretch(X, low, high)
    for row in range(4):
        for c in range(3):
            source = X[row] if whole else X[row, c]
            shares = [100 * float(q[row, 0 if whole else c]) for q in (low, high)]
            a, b = np.percentile(source.numpy(), shares)
            close(ours[row, c], np.clip((X[row, c].numpy() - a) / (b - a), 0, 1))
    flat = torch.full((1, 1, 4, 4), 0.3)
    assert torch.equal(stretch(flat, torch.tensor([[0.01]]), torch.tensor([[0.99]])), flat)


@pytest.mark.parametrize("size", [3, 5])
def test_median_and_mean_equal_scipys(size):
    image, axes = X.double().numpy(), (2, 3)
    close(median_filter(X, size), ndimage.median_filter(image, size, mode="reflect", axes=axes))
    close(mean_filter(X, size), ndimage.uniform_filter(image, size, mode="nearest", axes=axes))


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("gaussian", 0.5, 0.1), ("poisson", 0.5, (0.5 / 256) ** 0.5), ("speckle", 0.5, 0.05),
        ("salt", 0.525, (0.05 * 0.95 * 0.25) ** 0.5),
        ("pepper", 0.475, (0.05 * 0.95 * 0.25) ** 0.5),
        ("salt and pepper", 0.5, (0.05 * 0.25) ** 0.5),
    ],
)  # fmt: skip
def test_noise_has_the_right_size(name, mean, spread):
    x = torch.full((100, 1, 20, 20), 0.5)
    noisy = GROUPS["noise"][name](x, draws(100))
    assert abs(float(noisy.mean()) - mean) < 0.002
    assert abs(float(noisy.std()) / spread - 1) < 0.02


def test_precision_leaves_8_to_200_steps():
    x = torch.linspace(0, 1, 4000).view(1, 1, 1, 4000).expand(200, 3, 1, -1)
    out = GROUPS["precision"]["precision"](x, draws(200))
    steps = torch.tensor([[len(c.unique()) - 1 for c in row] for row in out])
    assert int(steps.min()) in range(8, 12)
    assert int(steps.max()) in range(196, 201)
    same = (steps == steps[:, :1]).all(1).double().mean()
    assert 0.4 < float(same) < 0.6


# All transforms


@each
@pytest.mark.parametrize("side", [8, 32])
def test_the_rows_do_not_know_of_each_other(group, name, side):
    x = torch.rand(5, 3, side, side, generator=torch.Generator().manual_seed(1))
    member, numbers = GROUPS[group][name], draws(5)
    whole = member(x, numbers)
    assert whole.shape == x.shape
    assert whole.dtype == x.dtype
    assert bool(whole.isfinite().all())
    for row in (3, 0):
        close(member(x[row : row + 1], numbers.at(slice(row, row + 1)))[0], whole[row])
    assert not torch.equal(whole, x)


@each
def test_gradients_are_finite_also_on_flat_images(group, name):
    flat = torch.tensor([0.0, 0.3, 1.0]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
    for images in (X, flat):
        x = images.clone().requires_grad_()
        out = GROUPS[group][name](x, draws(len(x))).clamp(0, 1)
        weights = torch.arange(out.numel()).view_as(out) % 7 - 2.0
        (gradient,) = torch.autograd.grad((out * weights).sum(), x)
        assert bool(gradient.isfinite().all())
        if x.shape == X.shape:
            assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize("channels", [1, 3])
def test_subsets_and_order_are_uniform(channels):
    groups = [g for g in GROUPS if channels == 3 or g not in COLOR_ONLY]
    group_of = {name: group for group, name in MEMBERS}
    assert len(group_of) == len(MEMBERS)  # names are streams, so each is there once
    rows, k = 4000, 5
    names = plan(draws(rows), k, channels=channels)
    assert all(len({group_of[name] for name in row}) == k for row in names)
    for place in range(k):
        counts = Counter(group_of[row[place]] for row in names)
        assert set(counts) == set(groups)
        assert all(abs(n / rows - 1 / len(groups)) < 0.02 for n in counts.values())
    pairs = Counter((group_of[row[0]], group_of[row[1]]) for row in names)
    assert len(pairs) == len(groups) * (len(groups) - 1)
    members = Counter(name for row in names for name in row)
    for group in groups:
        counts = [members[name] for name in GROUPS[group]]
        assert max(counts) < 1.3 * min(counts)
    assert [len(row) for row in plan(draws(2), 99, channels=channels)] == 2 * [len(groups)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("model", "channels"), [(GREY, 1), (MODEL, 3)])
def test_images_stay_images(model, channels, dtype):
    x = X[:, :channels].to(dtype)
    defense = BarrageOfTransforms(model, transforms=10, draws=12)
    images = defense.transform(x, None, defense.numbers(x))
    assert images.shape == (4, 12, channels, 10, 12)
    assert images.dtype == dtype
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    flat = images.flatten(0, 1).flatten(1)
    assert len(torch.unique(flat, dim=0)) == 48


def test_no_transforms_are_the_model_itself():
    defense = BarrageOfTransforms(MODEL, transforms=0, draws=2)
    torch.testing.assert_close(defense(X), MODEL(X).log_softmax(1))
    with pytest.raises(InputError, match="transforms must be at least 0"):
        BarrageOfTransforms(MODEL, transforms=-1)


def test_one_transform_is_that_transform():
    defense = BarrageOfTransforms(MODEL, transforms=1, draws=6)
    index = torch.tensor([7, 2, 9, 4])
    numbers = defense.numbers(X, index)
    images = defense.transform(X, None, numbers)
    for row in range(4):
        for k in range(6):
            one = numbers.at(slice(row, row + 1), torch.tensor([[k]]))
            [[name]] = plan(one, 1, channels=3)
            (member,) = (GROUPS[g][n] for g, n in MEMBERS if n == name)
            own = Draws(make_key(numbers.key, name), one.index, one.k)
            close(images[row, k], member(X[row : row + 1], own).clamp(0, 1)[0])
