from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import InputError, Pool, Uniform, get_preset, make_defense
from mixup_inference.defenses import DEFENSES, PRESETS

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
POOL = Pool(torch.rand(20, 3, 32, 32), torch.arange(20) % 10)

# Tables 4 and 5 of the paper, row by row, typed in from the paper (sigma on [-1, 1]).
PAPER = {
    "cifar10/mixup+gaussian": {"sigma": 0.04},
    "cifar10/mixup+rotation": {"degrees": 40},
    "cifar10/mixup+resize-pad": {"size": (16, 24)},
    "cifar10/mixup+crop-resize": {"size": (22, 30)},
    "cifar10/erm+mi-ol": {"lam": 0.6},
    "cifar10/mixup+mi-ol": {"lam": 0.5},
    "cifar10/mixup+mi-combined": {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": 0.2},
    "cifar10/iat+gaussian": {"sigma": 0.075},
    "cifar10/iat+rotation": {"degrees": 30},
    "cifar10/iat+resize-pad": {"size": (20, 28)},
    "cifar10/iat+crop-resize": {"size": (20, 28)},
    "cifar10/at+mi-ol": {"lam": 0.8},
    "cifar10/iat+mi-ol": {"lam": 0.6},
    "cifar100/mixup+gaussian": {"sigma": 0.025},
    "cifar100/mixup+rotation": {"degrees": 20},
    "cifar100/mixup+resize-pad": {"size": (18, 26)},
    "cifar100/mixup+crop-resize": {"size": (24, 32)},
    "cifar100/mixup+mi-ol": {"lam": 0.5},
    "cifar100/mixup+mi-combined": {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": 0.2},
    "cifar100/iat+gaussian": {"sigma": 0.06},
    "cifar100/iat+rotation": {"degrees": 20},
    "cifar100/iat+resize-pad": {"size": (22, 30)},
    "cifar100/iat+crop-resize": {"size": (24, 32)},
    "cifar100/iat+mi-ol": {"lam": 0.6},
}


def test_presets_are_the_papers_tables():
    undefended = {
        f"{data}/{model}" for data in ("cifar10", "cifar100") for model in ("mixup", "iat")
    }
    assert set(PRESETS) == set(PAPER) | undefended
    for name, settings in PAPER.items():
        ours = dict(PRESETS[name].settings)
        assert ours.pop("variant", "crop") == "crop"
        if "sigma" in ours:
            ours["sigma"] = ours["sigma"] * 2
        assert ours == settings, name


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs(name):
    defense = get_preset(name).build(MODEL, POOL, draws=2, seed=1)
    assert defense(torch.rand(3, 3, 32, 32)).shape == (3, 10)


def test_every_kind_can_be_made_and_differs_from_the_model():
    x = torch.rand(3, 3, 32, 32)
    plain = MODEL(x).log_softmax(1)
    for kind in DEFENSES:
        defense = make_defense(kind, MODEL, POOL)
        same = torch.allclose(defense(x).log_softmax(1), plain, atol=1e-6)
        assert same == (kind in ("none", "mi-combined")), kind


def test_ratios_as_in_toml():
    assert make_defense("mi-ol", MODEL, POOL, lam={"uniform": [0.4, 0.6]}).lam == Uniform(0.4, 0.6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_defense("mi-combine", MODEL, POOL), "did you mean 'mi-combined'"),
        (lambda: make_defense("mi-ol", MODEL), "needs a pool"),
        (lambda: make_defense("mi-ol", MODEL, POOL, lamb=0.5), "did you mean 'lam'"),
        (lambda: make_defense("mi-ol", MODEL, POOL, labels="predicted"), "unknown setting"),
        (lambda: make_defense("none", MODEL, sigma=1), "unknown setting"),
        (lambda: make_defense("mi-ol", MODEL, POOL, lam={"normal": [0, 1]}), "a ratio is"),
        (lambda: make_defense("mi-ol", MODEL, POOL, lam={"beta": [1]}), "a ratio is"),
        (lambda: get_preset("cifar10/mixup+gausian"), "mean 'cifar10/mixup\\+gaussian'"),
    ],
)
def test_unknown_names(make, words):
    with pytest.raises(InputError, match=words):
        make()
