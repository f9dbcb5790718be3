"""Fixed changes of the input, against Pillow, SciPy, kornia and ART."""

from __future__ import annotations

import io
import warnings

import kornia
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import nn

from mixup_inference import InputError, evaluate, make_defense
from mixup_inference.attacks import QueryModel, run_attack
from mixup_inference.defenses import (
    DEFENSES,
    BitDepthReduction,
    GaussianBlur,
    JpegCompression,
    Resize,
)
from mixup_inference.defenses.filters import gaussian_blur, jpeg, quantize
from mixup_inference.models.call import count_passes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from art.defences.preprocessor import FeatureSqueezing
    from art.defences.preprocessor import JpegCompression as ArtJpeg

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(4, 3, 12, 16, generator=GENERATOR)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 5))
FIXED = [JpegCompression, BitDepthReduction, GaussianBlur, Resize]
every = pytest.mark.parametrize("cls", FIXED)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [10, 75])
def test_jpeg_is_that_of_pillow(channels, quality):
    x = X[:, :channels]
    ours = jpeg(x, [quality] * len(x))
    for image, found in zip(x, ours, strict=True):
        stored = np.rint(image.permute(1, 2, 0).numpy() * 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(stored.squeeze(2) if channels == 1 else stored).save(
            file, "JPEG", quality=quality
        )
        decoded = np.array(Image.open(file)).reshape(stored.shape)
        torch.testing.assert_close(found.permute(1, 2, 0), torch.from_numpy(decoded) / 255)
    assert len({float((jpeg(x, [q] * len(x)) - x).abs().mean()) for q in (10, 50, 90)}) == 3


def test_jpeg_agrees_with_art_and_kornia():
    """ART cuts to 8 bits where we round, so give it 8 bits; kornia has another chroma filter."""
    x = (X * 255).round() / 255
    theirs, _ = ArtJpeg((0, 1), quality=60, channels_first=True)(x.numpy() + 1e-4)
    torch.testing.assert_close(jpeg(x, [60] * 4), torch.from_numpy(theirs), atol=1e-6, rtol=0)
    smooth = gaussian_blur(torch.rand(2, 3, 16, 16, generator=GENERATOR), torch.tensor(2.0))
    codec = kornia.enhance.jpeg_codec_differentiable(smooth, torch.tensor([75.0]))
    assert float((codec - jpeg(smooth, [75, 75])).abs().mean()) < 0.01


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_bit_depth_is_that_of_art(bits):
    theirs, _ = FeatureSqueezing((0, 1), bit_depth=bits)(X.numpy())
    theirs = theirs.astype(np.float32)
    ours = BitDepthReduction(MODEL, bits=bits).preprocess(X)
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-6, rtol=0)
    assert len(ours.unique()) <= 2**bits


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.0, 2.5])
def test_blur_equals_scipy_and_kornia(sigma):
    ours = GaussianBlur(MODEL, sigma=sigma).preprocess(X)
    theirs = gaussian_filter(X.double().numpy(), sigma, axes=(2, 3), mode="nearest", truncate=4)
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), atol=1e-6, rtol=0)
    size = 2 * int(4 * sigma + 0.5) + 1
    theirs = kornia.filters.gaussian_blur2d(X, size, (sigma, sigma), border_type="replicate")
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_each_row_and_channel_can_have_a_blur_of_its_own():
    sigma = torch.rand(4, 3, generator=GENERATOR) * 3
    ours = gaussian_blur(X, sigma)
    for row in range(4):
        for c in range(3):
            alone = gaussian_blur(X[row : row + 1, c : c + 1], sigma[row, c])
            torch.testing.assert_close(ours[row, c], alone[0, 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [0.25, 0.5, 0.75])
def test_resize_equals_pillow(size):
    ours = Resize(MODEL, size=size).preprocess(X)
    small = (round(16 * size), round(12 * size))
    for image, found in zip(X.flatten(0, 1), ours.flatten(0, 1), strict=True):
        shrunk = Image.fromarray(image.numpy()).resize(small, Image.Resampling.BILINEAR)
        whole = np.array(shrunk.resize((16, 12), Image.Resampling.BILINEAR))
        torch.testing.assert_close(found, torch.from_numpy(whole), atol=1e-5, rtol=0)


@every
def test_one_pass_and_no_randomness(cls):
    defense = cls(MODEL, draws=30)
    with count_passes(MODEL) as passes:
        out = defense(X)
    assert passes.forward == len(X)
    assert torch.equal(out, MODEL(defense.preprocess(X)).log_softmax(1))
    assert defense.draw(X, 7, index=torch.arange(4)).shape == (4, 1, 5)
    query = QueryModel(defense, X)
    assert not query.is_random
    assert query.images(10) == 1  # so attacks make no smaller batches than on the model alone


@every
def test_the_gradient_is_that_of_the_function_or_of_the_identity(cls):
    x = X.clone().requires_grad_()
    defense = cls(MODEL)
    (gradient,) = torch.autograd.grad(defense.preprocess(x).sum(), x)
    if getattr(cls, "surrogate_gradient", False):
        assert torch.equal(gradient, torch.ones_like(x))
    else:
        small = X[:1, :1, :4, :5].double().requires_grad_()
        assert torch.autograd.gradcheck(defense.preprocess, (small,))


def test_neutral_settings_are_the_model_itself():
    x = (X * 255).round() / 255
    expected = MODEL(x).log_softmax(1)
    for name, settings in {
        "bit-depth": {"bits": 8},
        "blur": {"sigma": 0.0},
        "resize": {"size": 1.0},
    }.items():
        torch.testing.assert_close(make_defense(name, MODEL, **settings)(x), expected)
    assert torch.equal(quantize(x, torch.full((4, 1, 1, 1), 255)), x)


@pytest.mark.parametrize("attack", ["eot-pgd", "apgd", "square", "frozen"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("jpeg", {}),
        ("bit-depth", {}),
        ("total-variation", {"drop": 0.1, "weight": 0.01}),
        ("smoothing", {"sigma": 0.1}),
        ("bart", {"transforms": 1}),
    ],
)
def test_adaptive_attacks_go_through_the_surrogate(trained, parts, name, settings, attack):
    assert DEFENSES[name].factory.surrogate_gradient
    x, y = parts["test"].pixels[:20], parts["test"].labels[:20]
    defense = make_defense(name, trained, draws=3, **settings)
    counts = {"queries": 200} if attack == "square" else {"steps": 15}
    found = run_attack(attack, defense, x, y, settings=counts, eps=0.25, repeats=1)
    assert evaluate(defense, x, y).value > 0.75
    assert float(found.fooled.double().mean()) > 0.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: JpegCompression(MODEL, quality=96), "quality must be in"),
        (lambda: JpegCompression(MODEL, quality=7.5), "quality must be a whole number"),
        (lambda: JpegCompression(MODEL)(X[:, :2]), "1 or 3 channels"),
        (lambda: BitDepthReduction(MODEL, bits=0), "bits must be in"),
        (lambda: GaussianBlur(MODEL, sigma=-1), "sigma must be in"),
        (lambda: GaussianBlur(MODEL, sigma=1e6), "sigma must be in"),
        (lambda: Resize(MODEL, size=2.0), "size must be in"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(InputError, match=words):
        make()
