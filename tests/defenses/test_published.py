"""The published baselines against Pillow, which the published code called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mixup_inference import GaussianNoise, make_defense
from mixup_inference.defenses.published import cut_to_8_bits
from mixup_inference.draws import Draws, make_key

SIDE, DRAWS = 32, 4
#: Smooth pictures and noise; each level is kept by cutting off, as other 8-bit pictures would be.
LEVELS = torch.randint(0, 256, (6, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
X = cut_to_8_bits(LEVELS / 255)
NUMBERS = Draws(make_key(0), torch.arange(6), torch.arange(DRAWS))


def picture(x):
    return Image.fromarray((x * 255).round().byte().permute(1, 2, 0).numpy())


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def defense(name, **settings):
    return make_defense(f"{name}-published", nn.Flatten(), draws=DRAWS, **settings)


def test_cutting_off_is_torchvisions_way_to_a_picture():
    """ToPILImage multiplies by 255 and takes the byte; the images were normalised before."""
    x = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    normalised = (x - 0.5) / 0.5
    byte = (normalised * 0.5 + 0.5).mul(255).to(torch.uint8)
    assert torch.equal(cut_to_8_bits(x), byte.float() / 255)
    assert torch.equal(cut_to_8_bits(torch.tensor([0.0, 1.0])), torch.tensor([0.0, 1.0]))


def test_rotation_is_pillows():
    ours = defense("rotation", degrees=40.0).transform(X, None, NUMBERS)
    angles = 40 * (2 * NUMBERS.uniform(0) - 1)
    cut, equal = cut_to_8_bits(X), []
    for i in range(len(X)):
        for k in range(DRAWS):
            theirs = tensor(picture(cut[i]).rotate(float(angles[i, k]), Image.Resampling.NEAREST))
            equal.append((ours[i, k] == theirs).all(0).float().mean())
    assert float(torch.stack(equal).mean()) > 0.99  # a pixel half-way between two may be either


def test_crop_and_pad_moves_an_8_bit_window():
    ours = defense("resize-pad", size=(16, 24)).transform(X, None, NUMBERS)
    plain = make_defense("resize-pad", nn.Flatten(), size=(16, 24), variant="crop", draws=DRAWS)
    assert torch.equal(ours, plain.transform(cut_to_8_bits(X), None, NUMBERS))


def test_crop_and_resize_is_pillows():
    """Pillow rounds twice, after the rows and after the columns: one level apart at most."""
    smooth = torch.nn.functional.interpolate(X[..., ::8, ::8], SIDE, mode="bicubic").clamp(0, 1)
    ours = defense("crop-resize", size=(22, 22)).transform(smooth, None, NUMBERS)
    top, left = NUMBERS.integers(1, SIDE - 22 + 1), NUMBERS.integers(2, SIDE - 22 + 1)
    cut = cut_to_8_bits(smooth)
    for i in range(len(X)):
        for k in range(DRAWS):
            row, column = int(top[i, k]), int(left[i, k])
            window = picture(cut[i]).crop((column, row, column + 22, row + 22))
            theirs = tensor(window.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
            assert float((ours[i, k] - theirs).abs().max()) < 1.01 / 255


def test_noise_has_the_published_scale():
    ours = defense("gaussian", sigma=0.04)
    assert isinstance(ours, GaussianNoise)
    assert ours.sigma == pytest.approx(0.02)


@pytest.mark.parametrize("name", ["rotation", "resize-pad", "crop-resize"])
def test_the_gradient_passes_through_and_is_said_to_be_a_stand_in(name):
    module = defense(name)
    assert module.surrogate_gradient
    leaf = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module.transform(leaf, None, NUMBERS).sum(), leaf)
    assert float(gradient.abs().sum()) > 0
