from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import InputError, Pool, Uniform, defenses, get_preset, make_defense
from mixup_inference.defenses import (
    DEFENSES,
    PRESETS,
    DefenseEntry,
    GaussianNoise,
    settings_of,
)

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
    ours = {name for name in PRESETS if name.startswith("ours/")}
    assert set(PRESETS) - ours == set(PAPER) | undefended
    for name, settings in PAPER.items():
        preset, kind = PRESETS[name], name.partition("+")[2]
        assert preset.settings == settings, name
        # The baselines are those of the published code.
        assert preset.kind == kind + ("" if kind.startswith("mi-") else "-published")


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
        (lambda: make_defense("my_module:blur", MODEL), "runs only if you allow it"),
        (lambda: DEFENSES.load("torch:pi"), "must be a class or function"),
        (lambda: get_preset("cifar10/mixup+gausian"), "mean 'cifar10/mixup\\+gaussian'"),
    ],
)
def test_unknown_names(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_options_that_a_defence_does_not_take_are_dropped():
    assert make_defense("none", MODEL, draws=3, seed=1, engine="folded") is MODEL


@pytest.mark.parametrize("name", ["StochasticModule", "RandomizedInference"])
def test_old_names_of_the_base_class(name):
    with pytest.warns(DeprecationWarning, match="Defense"):
        old = getattr(defenses, name)
    assert isinstance(make_defense("gaussian", MODEL), old)
    with pytest.raises(AttributeError, match="no attribute"):
        defenses.Stochastic  # noqa: B018


BLUR = """
import torch
from torch import nn

class Blur(nn.Module):
    def __init__(self, model, width):
        super().__init__()
        self.model, self.width = model, width

    def forward(self, x):
        shift = torch.randint(-self.width, self.width + 1, (1,)).item()
        return self.model((x + x.roll(shift, -1)) / 2)

def blur(model, width=1):
    return Blur(model, width)

blur.grid = [{"width": 0}, {"width": 1}, {"width": 2}]
blur.title = "my blur"
"""


def test_a_defence_by_its_place(tmp_path, monkeypatch):
    (tmp_path / "my_defences.py").write_text(BLUR)
    monkeypatch.chdir(tmp_path)
    name = "my_defences:blur"
    entry = DEFENSES.load(name)
    try:
        assert (entry.title, entry.group, entry.random) == ("my blur", "user", True)
        assert (entry.needs_pool, settings_of(name)) == (False, {"width"})
        x = torch.rand(2, 3, 32, 32)
        defended = make_defense(name, MODEL, POOL, width=0, draws=5, engine="eager")
        torch.testing.assert_close(defended(x), MODEL(x))
    finally:
        DEFENSES.remove(name)


def test_a_factory_takes_what_its_signature_says():
    def needy(model, pool, *, size=1, seed=0):
        return nn.Sequential(model, nn.Identity())

    def passing(model, **options):
        return GaussianNoise(model, **options)

    entry = DefenseEntry("needy", needy)
    assert entry.needs_pool
    assert entry.settings == {"size", "seed"}
    assert entry.build(MODEL, POOL, draws=9, seed=3)[0] is MODEL
    assert DefenseEntry("passing", passing).build(MODEL, draws=9).draws == 9
    assert settings_of("mi-combined") >= {"sampling", "control_variate", "stop", "error", "draws"}
    with pytest.raises(InputError, match="must be a torch module"):
        DefenseEntry("wrong", lambda model: 3).build(MODEL)
