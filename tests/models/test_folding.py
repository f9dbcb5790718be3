"""The folded copy is the same function, and attacks on it find the same examples."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from mixup_inference import CombinedInference, MixupInference, create_model, pgd
from mixup_inference.attacks import eot_pgd, transfer
from mixup_inference.attacks.query import accelerate
from mixup_inference.models import MODELS
from mixup_inference.models.call import count_passes
from mixup_inference.models.folding import ROUNDED, WORTHWHILE, faster, fold, is_same

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def unsettle(model):
    """Statistics and weights of batch norm that are not those of a new one."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, NORMS) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_every_network_folds_to_the_same_function(name):
    model = unsettle(create_model(name, 10, channels=3)).double()
    twin, x = fold(model), torch.rand(3, 3, 32, 32).double()
    torch.testing.assert_close(twin(x), model(x), rtol=1e-9, atol=1e-9)
    left = sum(isinstance(part, NORMS) for part in twin.modules())
    before = sum(isinstance(part, NORMS) for part in model.modules())
    assert left == 0 or (name == "preact_resnet18" and left < before)  # norms before convolutions
    assert not any(weight.requires_grad for weight in twin.parameters())
    assert all(weight.requires_grad for weight in model.parameters())
    leaf, other = (x.clone().requires_grad_() for _ in range(2))
    (one,) = torch.autograd.grad(twin(leaf).logsumexp(1).sum(), leaf)
    (two,) = torch.autograd.grad(model(other).logsumexp(1).sum(), other)
    torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-10)


class Odd(nn.Module):
    """A shared layer, a norm whose input is used twice, one without statistics, a linear one."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(3, 3, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.twice, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.fickle = nn.BatchNorm2d(3, track_running_stats=False)
        self.linear, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.second(self.shared(self.first(self.shared(x)).relu())).relu()
        y = self.twice(x)
        x = self.norm(y) + y
        return self.last(self.linear(self.fickle(x).mean((2, 3))))


class Stubborn(nn.Module):
    """Steps that depend on values cannot be traced."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, x):
        x = self.layers(x)
        return (x.relu() if float(x.detach().sum()) > 0 else x).mean((2, 3))


@pytest.mark.parametrize(("kind", "left"), [(Odd, 4), (Stubborn, 1)])
def test_what_cannot_be_folded_stays(kind, left):
    torch.manual_seed(0)
    model, x = unsettle(kind()), torch.rand(5, 3, 8, 8)
    twin = fold(model)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-4, atol=1e-5)
    assert sum(isinstance(part, NORMS) for part in twin.modules()) == left


class Derived(nn.Module):
    """A number that follows from a buffer alone is a constant in a trace."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.register_buffer("spread", torch.tensor(4.0))

    def forward(self, x):
        return (self.layers(x) / self.spread.sqrt()).mean((2, 3))


@pytest.mark.parametrize(
    "make",
    [Odd, Stubborn, Derived, *(lambda n=n: create_model(n, 10, channels=3) for n in MODELS)],
    ids=["odd", "stubborn", "derived", *MODELS],
)
def test_a_copy_catches_up_with_its_model(make):
    torch.manual_seed(0)
    model, x = unsettle(make()).double(), torch.rand(3, 3, 16, 16).double()
    twin = fold(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.1 * torch.rand_like(tensor))
    model.train()
    twin.refresh(model)
    assert model.training
    assert not any(weight.requires_grad for weight in twin.parameters())
    torch.testing.assert_close(twin(x), model.eval()(x), rtol=1e-9, atol=1e-9)


def test_norms_without_weights_fold():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False), nn.ReLU(), nn.Flatten(),
        nn.Linear(72, 4), nn.BatchNorm1d(4, affine=False),
    ).eval()  # fmt: skip
    model[1].running_mean.normal_()
    model[5].running_var.uniform_(0.5, 2)
    twin, x = fold(model), torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(twin(x), model(x))
    assert not any(isinstance(part, NORMS) for part in twin.modules())


class Viewer(nn.Module):
    """``view`` does not take what convolutions give in channels-last."""

    def __init__(self):
        super().__init__()
        self.layer, self.linear = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)

    def forward(self, x):
        return self.linear(self.layer(x).view(len(x), -1))


def test_a_model_that_needs_its_memory_format_is_attacked_as_it_is(parts):
    model, x = Viewer().eval(), parts["test"].pixels.float()
    assert faster(model, x, images=WORTHWHILE) is model
    assert pgd(model, x, parts["test"].labels, steps=5).shape == x.shape


def test_only_where_it_pays_and_nobody_watches(trained, parts):
    x = parts["test"].pixels[:8]
    assert faster(trained, x, images=WORTHWHILE - 1) is trained
    assert faster(trained, x, images=WORTHWHILE) is not trained
    with count_passes(trained):
        assert faster(trained, x, images=WORTHWHILE) is trained
    assert faster(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), x, images=10**6) is not None
    broken = copy.deepcopy(trained)
    broken.features[0][0].bias = nn.Parameter(torch.full((8,), torch.nan))
    assert faster(broken, x, images=WORTHWHILE) is broken  # the copy is not the same function


class Rarely(nn.Module):
    """Random once in a thousand calls; a trace would never be."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.flip(3) if float(torch.rand(())) < 1e-3 else x)


def test_randomness_is_not_folded_away(trained, parts):
    module = Rarely(trained).eval()
    assert accelerate(module, parts["test"].pixels, images=10**6) is module
    assert accelerate(trained, parts["test"].pixels, images=10**6) is not trained
    twin = fold(trained)
    assert accelerate(twin, parts["test"].pixels, images=10**6) is twin


def eager(monkeypatch):
    monkeypatch.setattr(sys.modules["mixup_inference.models.folding"], "WORTHWHILE", 10**12)


def test_pgd_finds_the_same_examples(trained, parts, monkeypatch):
    x, y = parts["test"].pixels, parts["test"].labels
    options = {"eps": 0.1, "step": 0.02, "steps": 12, "random_start": False}
    made = []
    monkeypatch.setattr(
        sys.modules["mixup_inference.models.folding"],
        "fold",
        lambda m, **o: made.append(m) or fold(m, **o),
    )
    found = pgd(trained, x, y, **options)
    assert made == [trained]
    eager(monkeypatch)
    expected = pgd(trained, x, y, **options)
    # The sign of a gradient within rounding of zero may differ, and the path from there on.
    same = (found - expected).abs().flatten(1).amax(1) < 1e-5
    assert float(same.double().mean()) > 0.97
    assert made == [trained]


@pytest.mark.parametrize("kind", ["mi", "corrected", "combined"])
def test_attacks_through_a_defence_count_and_draw_the_same(trained, pool, parts, monkeypatch, kind):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    defense = {
        "mi": lambda: MixupInference(trained, pool, draws=6),
        "corrected": lambda: MixupInference(trained, pool, draws=6, control_variate=True),
        "combined": lambda: CombinedInference(trained, pool, draws=6, threshold=0.0),
    }[kind]
    options = {"eps": 0.1, "steps": 8, "draws": 4, "repeats": 2}
    first = [eot_pgd(defense(), x, y, **options), transfer(defense(), x, y, **options)]
    eager(monkeypatch)
    second = [eot_pgd(defense(), x, y, **options), transfer(defense(), x, y, **options)]
    for one, other in zip(first, second, strict=True):
        if kind != "combined":  # which makes MI-OL's draws for what it detects
            assert (one.forward, one.backward) == (other.forward, other.backward)
        same = (one.examples - other.examples).abs().flatten(1).amax(1) < 1e-5
        assert float(same.double().mean()) > 0.9


def test_a_twin_around_another_model_shares_the_calls(trained, pool, parts):
    x = parts["test"].pixels[:20]
    for defense in (
        MixupInference(trained, pool, draws=3, control_variate=True),
        CombinedInference(trained, pool, draws=3, control_variate=True, threshold=0.0),
    ):
        defense.prepare()
        twin = defense.with_model(fold(trained))
        assert twin.prepare() == 0
        index = torch.arange(20)
        torch.testing.assert_close(
            twin(x, index=index), defense(x, index=index), rtol=1e-3, atol=1e-4
        )
        twin(x)
        assert defense.calls == 1
        assert defense.model is trained


def test_same_is_about_log_probabilities():
    x = torch.rand(4, 1, 2, 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted[1].bias += 5  # the same softmax
    assert is_same(model, fold(shifted), x)
    with torch.no_grad():
        shifted[1].bias[0] += 0.01
    assert not is_same(model, fold(shifted), x)


def test_a_copy_may_round(trained, parts):
    x = parts["test"].pixels[:40]
    exact, rounded = fold(trained), fold(trained, rounds=True)
    with torch.no_grad():
        difference = (exact(x).softmax(1) - rounded(x).softmax(1)).abs().max()
    assert 1e-4 < float(difference) <= ROUNDED
    assert rounded(x).dtype == x.dtype
    assert is_same(trained, rounded, x)
    leaf = x.clone().requires_grad_()
    one, other = (torch.autograd.grad(copy_(leaf).logsumexp(1).sum(), leaf)[0] for copy_ in
                  (exact, rounded))  # fmt: skip
    assert not torch.equal(one, other)
    cosine = nn.functional.cosine_similarity(one.flatten(1), other.flatten(1))
    assert float(cosine.mean()) > 0.98

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = trained

        def forward(self, x):
            return 10 * torch.sin(1000 * self.inside(x))

    assert faster(trained, x, images=WORTHWHILE, rounds=True).rounds
    steep = faster(Steep().eval(), x, images=WORTHWHILE, rounds=True)
    assert not getattr(steep, "rounds", False)  # there it would be another function
