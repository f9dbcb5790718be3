from __future__ import annotations

import kornia
import pytest
import torch
from torch import nn
from torch.nn import functional

from mixup_inference import CropResize, GaussianNoise, InputError, RandomRotation, ResizePad
from mixup_inference.defenses.transforms import crop_pad, crop_resize, resize_pad, rotate
from mixup_inference.draws import Draws, make_key

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(5, 3, 12, 12, generator=GENERATOR)
WIDE = torch.rand(5, 3, 8, 14, generator=GENERATOR)
INDEX = torch.arange(5)
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                      nn.Linear(16, 3))  # fmt: skip
BASELINES = [
    GaussianNoise(MODEL, sigma=0.1, draws=4),
    GaussianNoise(MODEL, sigma=0.3, clip=True, draws=4),
    RandomRotation(MODEL, degrees=30, draws=4),
    RandomRotation(MODEL, degrees=30, mode="nearest", draws=4),
    ResizePad(MODEL, size=(6, 10), draws=4),
    ResizePad(MODEL, size=(0.5, 0.8), variant="crop", draws=4),
    CropResize(MODEL, size=(0.6, 0.9), draws=4),
]
names = pytest.mark.parametrize("defense", BASELINES, ids=lambda d: d.extra_repr())


def block(count, draws=6):
    return Draws(make_key(0), torch.arange(count), torch.arange(draws))


@pytest.mark.parametrize("x", [X, WIDE], ids=["square", "wide"])
def test_rotation_equals_kornia(x):
    degrees = torch.linspace(-170, 170, 5 * 6).view(5, 6)
    ours = rotate(x, degrees)
    for k in range(6):
        theirs = kornia.geometry.rotate(x, degrees[:, k], padding_mode="zeros", align_corners=True)
        torch.testing.assert_close(ours[:, k], theirs, atol=2e-5, rtol=0)


def test_rotation_by_a_right_angle_is_exact_and_counter_clockwise():
    torch.testing.assert_close(
        rotate(X, torch.full((5, 1), 90.0))[:, 0], X.rot90(1, (2, 3)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("x", [X, WIDE], ids=["square", "wide"])
def test_resize_pad_equals_resizing_and_padding_one_by_one(x):
    height, width = x.shape[-2:]
    for tall, wide, top, left in [(5, 6, 0, 0), (8, 7, 0, 3), (4, 4, 2, 1), (3, 8, 5, 4)]:
        n = torch.full((5, 1), 1)
        ours = resize_pad(x, n * tall, n * wide, n * top, n * left)[:, 0]
        small = functional.interpolate(x, (tall, wide), mode="bilinear", align_corners=False)
        frame = (left, width - wide - left, top, height - tall - top)
        torch.testing.assert_close(ours, functional.pad(small, frame), atol=1e-5, rtol=0)


def test_resize_agrees_with_kornia():
    n = torch.full((5, 1), 1)
    ours = resize_pad(X, n * 7, n * 7, n * 0, n * 0)[:, 0, :, :7, :7]
    theirs = kornia.geometry.resize(X, (7, 7), interpolation="bilinear", antialias=False)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("x", [X, WIDE], ids=["square", "wide"])
def test_crop_resize_equals_cropping_and_resizing_one_by_one(x):
    for tall, wide, top, left in [(8, 8, 0, 0), (5, 6, 3, 2), (7, 4, 1, 4), (1, 1, 2, 2)]:
        n = torch.full((5, 1), 1)
        ours = crop_resize(x, n * tall, n * wide, n * top, n * left)[:, 0]
        window = x[..., top : top + tall, left : left + wide]
        whole = functional.interpolate(window, x.shape[-2:], mode="bilinear", align_corners=False)
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=0)


def test_crop_resize_agrees_with_kornia():
    n = torch.full((5, 1), 1)
    ours = crop_resize(X, n * 6, n * 6, n * 3, n * 2)[:, 0]
    corners = torch.tensor([[[2.0, 3], [7, 3], [7, 8], [2, 8]]]).expand(5, -1, -1)
    window = kornia.geometry.crop_by_boxes(
        X, corners, torch.tensor([[[0.0, 0], [5, 0], [5, 5], [0, 5]]]).expand(5, -1, -1)
    )
    theirs = kornia.geometry.resize(window, (12, 12), interpolation="bilinear", antialias=False)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_crop_pad_moves_a_window():
    n = torch.full((5, 1), 1)
    ours = crop_pad(X, n * 5, n * 6, n * 1, n * 2, n * 7, n * 4)[:, 0]
    expected = torch.zeros_like(X)
    expected[..., 1:6, 2:8] = X[..., 7:12, 4:10]
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)


def test_each_sample_and_draw_gets_its_own_transform():
    x = X[:1].expand(5, -1, -1, -1)
    for defense in BASELINES:
        images = defense.transform(x, None, block(5))
        flat = images.flatten(0, 1).flatten(1)
        assert len(torch.unique(flat, dim=0)) > 20, defense  # of 30; sizes and places may recur


def test_sizes_span_the_range_both_ends_included():
    defense = ResizePad(MODEL, size=(6, 8), draws=400)
    shown = defense.transform(torch.ones(1, 1, 12, 12), None, block(1, 400))[0, :, 0]
    rows = (shown.amax(2) > 0).sum(1)
    assert set(rows.tolist()) == {6, 7, 8}


def test_fractions_and_pixels_are_the_same_thing():
    pixels = CropResize(MODEL, size=(6, 9), draws=4)
    fractions = CropResize(MODEL, size=(0.5, 0.75), draws=4)
    assert torch.equal(pixels(X, index=INDEX), fractions(X, index=INDEX))


def test_noise_has_the_right_size():
    defense = GaussianNoise(MODEL, sigma=0.07)
    noise = defense.transform(X, None, block(5, 200)) - X[:, None]
    assert abs(float(noise.std()) - 0.07) < 0.001
    assert abs(float(noise.mean())) < 0.001
    clipped = GaussianNoise(MODEL, sigma=0.5, clip=True).transform(X, None, block(5))
    assert 0 <= float(clipped.min()) <= float(clipped.max()) <= 1


@names
def test_averages_probabilities(defense):
    images = defense.transform(X, None, Draws(make_key(0, "index", 0), INDEX, torch.arange(4)))
    expected = torch.stack([MODEL(images[:, k]).softmax(1) for k in range(4)]).mean(0)
    torch.testing.assert_close(defense.predict_proba(X, index=INDEX), expected)


@names
@pytest.mark.usefixtures("same_global_state")
def test_is_differentiable_and_independent_of_the_chunk(defense):
    def gradient(chunk):
        defense.chunk = chunk
        x = X.clone().requires_grad_()
        out = defense(x, index=INDEX)
        return out.detach(), torch.autograd.grad(out.logsumexp(1).sum() + out[:, 0].sum(), x)[0]

    whole, pieces = gradient(None), gradient(3)
    torch.testing.assert_close(whole, pieces)
    assert float(whole[1].abs().sum()) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_reads_the_right_pixels(dtype):
    """Positions are computed in float32: half precision cannot count to 224."""
    x = torch.rand(1, 1, 224, 224, generator=GENERATOR).to(dtype)
    for defense in BASELINES[2:]:
        half = defense.transform(x, None, block(1, 2))
        assert half.dtype == dtype
        full = defense.transform(x.float(), None, block(1, 2))
        torch.testing.assert_close(half.float(), full, atol=0.01, rtol=0)


@pytest.mark.parametrize("cls", [GaussianNoise, RandomRotation, CropResize, ResizePad])
def test_gradient_equals_finite_differences(cls):
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 3)).double()
    defense = cls(model, draws=3)
    x = (0.1 + 0.8 * torch.rand(2, 2, 3, 3, generator=GENERATOR).double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: defense(z, index=INDEX[:2]), (x,))


def test_neutral_settings_are_the_model_itself():
    expected = MODEL(X).log_softmax(1)
    for defense in (
        GaussianNoise(MODEL, sigma=0),
        RandomRotation(MODEL, degrees=0),
        ResizePad(MODEL, size=(12, 12)),
        ResizePad(MODEL, size=(1.0, 1.0), variant="crop"),
        CropResize(MODEL, size=(12, 12)),
    ):
        torch.testing.assert_close(defense(X).detach(), expected.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GaussianNoise(MODEL, sigma=-1), "sigma must be at least 0"),
        (lambda: RandomRotation(MODEL, degrees=200), "degrees must be in"),
        (lambda: RandomRotation(MODEL, mode="bicubic"), "unknown mode"),
        (lambda: ResizePad(MODEL, size=(9, 6)), "low <= high"),
        (lambda: ResizePad(MODEL, size=(0, 6)), "0 < low"),
        (lambda: ResizePad(MODEL, size=(0.5, 3)), "whole numbers"),
        (lambda: ResizePad(MODEL, variant="crp"), "did you mean 'crop'"),
        (lambda: CropResize(MODEL, size=(0.5, 1.5)), "at most 1.0"),
        (lambda: CropResize(MODEL, size=(20, 30))(X), "larger than the image"),
        (lambda: GaussianNoise("model"), "nn.Module"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(InputError, match=words):
        make()
