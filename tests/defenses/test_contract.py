"""What every defence in the registry promises, a user's own included."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn

from mixup_inference import InputError, Pool
from mixup_inference.attacks import eot_pgd
from mixup_inference.defenses import DEFENSES, Defense, group_of, make_defense, settings_of
from mixup_inference.draws import make_key
from mixup_inference.evaluation import evaluate

torch.manual_seed(0)
L = 4
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, L)).eval()
POOL = Pool(torch.rand(12, 1, 8, 8), torch.arange(12) % L)
X, INDEX = torch.rand(6, 1, 8, 8), torch.tensor([3, 100, 7, 0, 55, 8])
GRID = [{"size": 0.0}, {"size": 0.1}]


class UserNoise(nn.Module):
    """Noise from torch's global generator."""

    grid, title = GRID, "noise of my own"

    def __init__(self, model: nn.Module, size: float = 0.1) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x + self.size * torch.randn_like(x))


class UserShift(Defense):
    """Random brightness, with the draws of the package."""

    grid = GRID

    def __init__(self, model, *, size=0.1, **options):
        super().__init__(model, **options)
        self.size = size

    def transform(self, x, _, numbers):
        return x[:, None] + self.size * numbers.uniform(0).to(x.dtype)[..., None, None, None]


USERS = {"user-noise": UserNoise, "user-shift": UserShift}


@pytest.fixture(scope="module", autouse=True)
def registered():
    for name, factory in USERS.items():
        DEFENSES.register(name)(factory)
    yield
    for name in USERS:
        DEFENSES.remove(name)


every = pytest.mark.parametrize("name", [*DEFENSES, *USERS])


def make(name, **options):
    return make_defense(name, MODEL, POOL, **({"draws": 5, "seed": 1} | options))


@every
def test_the_entry_knows_its_settings(name):
    entry = DEFENSES[name]
    assert entry.title
    assert entry.settings == settings_of(name)
    assert entry.needs_pool == ("pool" in inspect.signature(entry.factory).parameters)
    assert not entry.settings & {"model", "pool", "options", *entry.fixed}
    for settings in [*entry.grid, entry.costliest]:
        assert settings.keys() <= entry.settings
    with pytest.raises(InputError, match="unknown setting"):
        make(name, surely_not=1)
    if entry.needs_pool:
        with pytest.raises(InputError, match="needs a pool"):
            make_defense(name, MODEL)


@every
def test_images_to_a_distribution_over_labels(name):
    defense = make(name)
    assert isinstance(defense, nn.Module)
    out = defense(X)
    assert out.shape == (6, L)
    assert out.dtype == X.dtype
    assert bool(out.isfinite().all())
    if isinstance(defense, Defense):
        torch.testing.assert_close(out.exp().sum(1), torch.ones(6))
        torch.testing.assert_close(defense.predict_proba(X, index=INDEX).sum(1), torch.ones(6))
        assert defense.draw(X, 3, index=INDEX).shape[::2] == (6, L)


@every
def test_draws_belong_to_samples(name):
    defense = make(name)
    if not isinstance(defense, Defense):
        pytest.skip("draws from the global generators, if at all")
    whole = defense(X, index=INDEX, stream="a")
    order = torch.tensor([5, 2, 0, 3, 3])
    for chunk in (None, 1, 3):
        other = make(name, chunk=chunk)
        pieces = [other(X[rows], index=INDEX[rows], stream="a") for rows in order.split(2)]
        torch.testing.assert_close(torch.cat(pieces), whole[order], rtol=1e-4, atol=1e-5)
    frozen = copy.deepcopy(defense).frozen()
    assert torch.equal(frozen(X), frozen(X))
    state = torch.get_rng_state()
    defense(X)
    assert torch.equal(torch.get_rng_state(), state)


@every
def test_is_random_if_the_entry_says_so(name):
    defense = make(name, **DEFENSES[name].costliest)
    assert (not torch.equal(defense(X), defense(X))) == DEFENSES[name].random


@every
def test_gradients(name):
    x = X.clone().requires_grad_()
    defense = make(name)
    (gradient,) = torch.autograd.grad(defense(x)[:, 0].sum(), x)
    assert bool(gradient.isfinite().all())
    assert float(gradient.abs().max()) > 0
    assert not any(p.grad is not None for p in MODEL.parameters())


@every
def test_says_what_it_is(name):
    defense, entry = make(name), DEFENSES[name]
    if not isinstance(defense, Defense):
        assert repr(defense)
        return
    shown = defense.extra_repr()
    assert "draws=5, seed=1" in shown
    for setting in inspect.signature(entry.factory).parameters.keys() - {"model", "pool"}:
        assert setting == "options" or f"{setting}=" in shown


@every
def test_evaluated_and_attacked(name):
    y = MODEL(X).argmax(1)
    state = torch.get_rng_state()
    found = [evaluate(make(name), X, y) for _ in range(2)]
    assert found[0] == found[1]
    result = eot_pgd(make(name), X, y, eps=0.3, steps=3, draws=2, repeats=2)
    assert result.examples.shape == X.shape
    assert torch.equal(torch.get_rng_state(), state)


def test_the_words_that_draws_are_made_from():
    """Every published number depends on them."""
    defense, combined = make("gaussian", seed=4), make("mi-combined", seed=4)
    indexed = defense.numbers(X, INDEX, "a")
    assert indexed.key == make_key(4, "index", "a")
    assert torch.equal(indexed.index, INDEX)
    assert torch.equal(indexed.k, torch.arange(5))
    assert defense.frozen().numbers(X).key == make_key(4, "frozen")
    assert not defense.frozen().numbers(X).index.any()
    for call in (1, 2):
        assert defense.numbers(X, draws=2).key == make_key(4, "call", call)
        detect, defend = combined.part_numbers(X)
        assert detect.key == make_key(4, "detect", "call", call)
        assert defend.key == make_key(4, "defend", "call", call)
    detect, defend = combined.part_numbers(X, INDEX, 3, draws=2)
    assert (detect.key, defend.key) == (
        make_key(4, "detect", "index", 3),
        make_key(4, "defend", "index", 3),
    )
    assert torch.equal(detect.k, torch.arange(2))
    torch.testing.assert_close(
        defense(X, index=INDEX, stream="a"), defense.average(X, None, indexed)
    )


def test_the_group_of_a_name_in_results():
    found = {name: group_of(name) for name in ("none", "mi-pl", "rotation", "user-noise", "gone")}
    assert list(found.values()) == ["none", "mixup", "baseline", "user", "user"]
