from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mixup_inference import InputError, MixupInference, make_defense, pgd
from mixup_inference.attacks import judge, square
from mixup_inference.attacks.losses import LOSSES
from mixup_inference.attacks.query import QueryModel
from mixup_inference.attacks.square import square_eot
from mixup_inference.defenses import GaussianNoise

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 3))
X = torch.rand(9, 2, 6, 7)
Y = torch.arange(9) % 3
SIZES = {"linf": lambda delta: delta.flatten(1).abs().amax(1),
         "l2": lambda delta: delta.flatten(1).norm(dim=1)}  # fmt: skip


def margins(model, x, y):
    return LOSSES["log-margin"](torch.log_softmax(model(x), 1)[:, None], y, None).detach()


@settings(max_examples=15)
@given(
    eps=st.floats(0, 2),
    queries=st.integers(1, 12),
    norm=st.sampled_from(["linf", "l2"]),
    targeted=st.booleans(),
    p_init=st.floats(0, 1),
    size=st.tuples(st.integers(1, 6), st.integers(1, 7)),
)
def test_stays_in_the_ball_and_in_range(eps, queries, norm, targeted, p_init, size):
    """In images of any shape, the smallest too."""
    height, width = size
    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * height * width, 3))
    x = X[:, :, :height, :width]
    out = square_eot(model, x, Y, eps=eps, queries=queries, norm=norm, targeted=targeted,
                     p_init=p_init)  # fmt: skip
    assert bool((SIZES[norm](out.examples - x) <= eps + 1e-6).all())
    assert 0 <= float(out.examples.min()) <= float(out.examples.max()) <= 1
    assert out.trace.shape == (queries + 1,)


@settings(max_examples=4)
@given(rows=st.permutations(range(9)), batch_size=st.integers(1, 20))
def test_each_point_is_attacked_on_its_own(rows, batch_size):
    index = torch.arange(9) + 100
    for victim in (MODEL, GaussianNoise(MODEL, sigma=0.3, draws=2)):
        for norm in ("linf", "l2"):
            common = {"eps": 0.3, "queries": 8, "draws": 2, "norm": norm, "targeted": True}
            whole = square_eot(victim, X, Y, index=index, **common)
            mixed = square_eot(victim, X[rows], Y[rows], index=index[rows], batch_size=batch_size,
                               **common)  # fmt: skip
            torch.testing.assert_close(mixed.examples, whole.examples[rows])
            torch.testing.assert_close(mixed.loss, whole.loss[rows])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_queries_never_lower_the_margin(norm):
    """Without randomness; and the trace is that of the image which is kept."""
    out = square_eot(MODEL, X, Y, eps=0.2, queries=30, norm=norm)
    assert bool((out.trace.diff() >= -1e-6).all())
    assert float(out.trace[-1]) > float(out.trace[0])
    torch.testing.assert_close(out.loss, margins(MODEL, out.examples, Y))
    first = square_eot(MODEL, X, Y, eps=0.2, queries=1, norm=norm)
    assert bool((out.loss >= first.loss - 1e-6).all())
    assert float(first.trace[0]) == pytest.approx(float(out.trace[0]), abs=1e-6)


def test_the_start_in_linf_is_stripes():
    grey = torch.full_like(X, 0.5)
    delta = square_eot(MODEL, grey, Y, eps=0.25, queries=1).examples - grey
    assert bool((delta.abs() == 0.25).all())
    assert bool((delta == delta[:, :, :1]).all())
    assert float((delta[..., 1:] != delta[..., :-1]).float().mean()) > 0.3
    share = float((delta[:, :, 0] > 0).float().mean())  # 126 coins
    assert 0.3 < share < 0.7


def test_squares_reach_every_pixel_and_have_one_sign_a_channel(monkeypatch):
    """Where every candidate is kept, as with a margin that rises whatever is asked."""
    grey = torch.full((400, 2, 6, 7), 0.5)
    y = torch.zeros(400, dtype=torch.long)
    seen = []

    def keep(batch, image, share, numbers):
        new = square_of(batch, image, share, numbers)
        seen.append((new - image, new - batch.x))
        return new

    square_of = square._square
    monkeypatch.setattr(square, "_square", keep)
    square_eot(nn.Sequential(nn.Flatten(), nn.Linear(84, 2)), grey, y, eps=0.25, queries=2,
               p_init=9 / 42, batch_size=400)  # fmt: skip
    moved, delta = seen[0]
    changed = (moved != 0).any(1)
    assert bool((changed.flatten(1).sum(1) <= 9).all())  # three by three, less where it was so
    reached = changed.float().mean(0)
    assert bool((reached > 0).all())
    corner = 0.75 / (4 * 5)  # one of 20 places covers it; one of two channels changes
    assert abs(float(reached[-1, -1]) - corner) < 4 * (corner / 400) ** 0.5
    up, down = (((moved != 0) & (delta == to)).flatten(2).any(2) for to in (0.25, -0.25))
    assert not bool((up & down).any())
    both = (up | down).all(1)
    assert 0.3 < float((up[both][:, 0] == up[both][:, 1]).float().mean()) < 0.7


def test_l2_uses_the_whole_budget_away_from_the_walls():
    grey = torch.full_like(X, 0.5)
    for queries in (1, 40):
        out = square_eot(MODEL, grey, Y, eps=0.4, queries=queries, norm="l2")
        torch.testing.assert_close(out.l2, torch.full((9,), 0.4))


def test_the_start_in_l2_is_tiles():
    grey = torch.full((9, 2, 10, 10), 0.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(200, 3))
    delta = square_eot(model, grey, Y, eps=0.4, queries=1, norm="l2").examples - grey
    tiles = delta.unfold(2, 2, 2).unfold(3, 2, 2)  # five by five of two by two
    torch.testing.assert_close(tiles.square().sum((4, 5)), torch.full((9, 2, 5, 5), 0.16 / 50))
    torch.testing.assert_close(tiles.sum((4, 5)), torch.zeros(9, 2, 5, 5))
    for sign in (tiles[..., 0, 0], tiles[..., 0, 0] * tiles[..., 0, 1]):
        assert 0.35 < float((sign > 0).float().mean()) < 0.65  # up or down, flat or upright


def test_in_l2_one_window_gets_what_another_gives(monkeypatch):
    """Nothing else changes, and the length is eps before any rescaling."""
    grey, seen = torch.full((50, 2, 9, 9), 0.5), []
    y = torch.zeros(50, dtype=torch.long)

    def keep(batch, delta):
        seen.append(delta.clone())
        return stretch(batch, delta)

    stretch = square._stretch
    monkeypatch.setattr(square, "_stretch", keep)
    model = nn.Sequential(nn.Flatten(), nn.Linear(162, 2))
    common = {"eps": 0.4, "queries": 2, "norm": "l2", "p_init": 9 / 81, "batch_size": 50}
    square_eot(model, grey, y, **common)
    start, new = (0.4 * delta / delta.flatten(1).norm(dim=1)[:, None, None, None] for delta in seen)
    torch.testing.assert_close(seen[1].flatten(1).norm(dim=1), torch.full((50,), 0.4))
    changed = ((new - start).abs() > 1e-6).any(1)
    assert bool((changed.flatten(1).sum(1) <= 18).all())  # two windows of three by three
    emptied = (changed & (new == 0).all(1)).flatten(1).sum(1)
    assert int(emptied.max()) == 9
    assert int((changed.flatten(1).sum(1) - emptied).min()) >= 7  # the bump hides few old values
    both = changed[:, None]
    torch.testing.assert_close(
        (new * both).square().sum((2, 3)), (start * both).square().sum((2, 3)), rtol=1e-3, atol=1e-6
    )  # in each channel
    # Half of what was asked for is lost where the image is black: the new window gets that too.
    square_eot(model, 0 * grey, y, **common)
    torch.testing.assert_close(seen[3].flatten(1).norm(dim=1), torch.full((50,), 0.4))


@pytest.mark.parametrize("side", range(1, 9))
def test_the_bump_is_two_pyramids_of_opposite_sign(side):
    bump = square._bump(side)
    assert bump.shape == (side, side)
    assert float(bump.norm()) == pytest.approx(1)
    assert bool((bump[: side // 2] > 0).all())
    assert bool((bump[side // 2 :] < 0).all())
    if side > 1:
        assert float(bump[: side // 2].norm()) == pytest.approx(0.5**0.5)


def test_squares_shrink_as_in_the_paper():
    """Of 10,000 queries, p is halved after 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000."""
    for spent, halvings in ((0.001, 0), (0.0011, 1), (0.005, 1), (0.02, 2), (0.1, 4), (0.81, 9)):
        assert square._shrink(spent) == 0.5**halvings


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_linear_models_break_just_above_the_distance_and_never_below(classes):
    """Weights of one size; with several classes random search may end at a border further away."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, classes))
    weights = torch.randn(classes, 16, generator=generator).sign()
    model[1].weight.data, model[1].bias.data = weights, -weights.sum(1) / 2
    delta = torch.randn(10, 1, 4, 4, generator=generator)
    logits = model(0.5 + delta).detach()
    y = logits.argmax(1)
    lead = logits.gather(1, y[:, None]) - logits
    slope = (weights[y][:, None] - weights[None]).abs().sum(2)
    far = (lead / slope).nan_to_num(nan=torch.inf).amin(1)
    # Logits are proportional to the distance from grey: put all points 0.02 from their borders.
    x = 0.5 + 0.02 * delta / far[:, None, None, None]
    near = (x > 0.03).flatten(1).all(1) & (x < 0.97).flatten(1).all(1)
    assert int(near.sum()) > 4
    for factor in (0.99, 1.01):
        out = square_eot(model, x[near], y[near], eps=0.02 * factor, queries=600)
        if factor < 1 or classes == 2:
            assert bool((out.fooled == (factor > 1)).all())
        else:
            assert bool(out.fooled.any())


def test_targeted_goes_towards_the_target():
    targets = (Y + 1) % 3
    out = square_eot(MODEL, X, Y, eps=0.2, queries=40, targets=targets)
    before, after = (torch.log_softmax(MODEL(z), 1).gather(1, targets[:, None]) for z in
                     (X, out.examples))  # fmt: skip
    assert bool((after > before).all())


def test_new_draws_take_back_what_was_only_lucky(trained, parts, monkeypatch):
    """The loss over the draws that chose is too good; the result's own loss is not."""
    x, y = parts["test"].pixels, parts["test"].labels
    defense = GaussianNoise(trained, sigma=0.4)
    monkeypatch.setattr(square, "REFRESH", 60)
    out = square_eot(defense, x, y, eps=0.1, queries=120, draws=1)
    log_p = QueryModel(defense, x).log_probs(out.examples, torch.arange(200), 64, "another")
    each = torch.stack([LOSSES["log-margin"](log_p[:, k : k + 1], y, None) for k in range(64)])
    error = float((each.var(0).mean() / 200).sqrt())
    chosen, again = out.trace[59:61].tolist()  # the same images, on old draws and on new ones
    assert chosen > again + 3 * error
    chosen, last = out.trace[-2:].tolist()
    assert chosen > float(each.mean()) + 3 * error
    assert abs(last - float(each.mean())) < 3 * error
    assert last == pytest.approx(float(out.loss.double().mean()))


def test_noise_that_is_the_same_for_all_images_changes_nothing():
    """A candidate and the current image are compared on common draws, where it cancels."""

    class Shaky(nn.Module):
        def __init__(self, sigma):
            super().__init__()
            self.sigma = sigma

        def forward(self, x):
            tilt = 5 * (x.flatten(1) @ torch.arange(84).sin())
            noise = self.sigma * torch.randn(len(x))
            return torch.stack([torch.zeros(len(x)), tilt + noise], 1)

    calm, shaken = (
        square_eot(Shaky(sigma), X, Y * 0, eps=0.2, queries=50, draws=1) for sigma in (0.0, 50.0)
    )
    assert float(calm.trace[-1]) > float(calm.trace[0])
    assert torch.equal(shaken.examples, calm.examples)


@pytest.mark.parametrize("kind", ["model", "noise", "mi", "frozen"])
@pytest.mark.parametrize("queries", [1, 7, 55])
def test_passes_are_counted_exactly(pool, kind, queries):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y, draws = torch.rand(5, 1, 8, 8), torch.arange(5), 3
    victim = {
        "mi": MixupInference(model, pool, draws=4),
        "frozen": GaussianNoise(model, draws=4, fresh=False),
        "noise": GaussianNoise(model, draws=4),
    }.get(kind, model)
    out = square_eot(victim, x, y, queries=queries, draws=draws)
    look = {"model": 1, "frozen": 4, "noise": draws, "mi": draws + 1}[kind]
    assert out.forward == 5 * look * (queries + 1)  # the budget, and the loss of the result
    assert out.backward == 0


@pytest.mark.parametrize(
    ("kind", "settings"), [("mi-ol", {"lam": 0.5}), ("rotation", {"degrees": 40.0})]
)
def test_knows_a_random_defence_better_than_oblivious_attacks(trained, pool, parts, kind, settings):
    x, y = parts["test"].pixels[:50], parts["test"].labels[:50]
    defense = make_defense(kind, trained, pool, draws=8, **settings)
    common = {"eps": 0.15, "queries": 300}
    success = float(square_eot(defense, x, y, draws=5, **common).success.mean())
    for blind in (
        square_eot(trained, x, y, **common).examples,
        pgd(trained, x, y, eps=0.15, step=0.04, steps=15),
    ):
        assert success > float(judge(defense, blind, y).double().mean()) + 0.1


@pytest.mark.usefixtures("same_global_state")
def test_leaves_model_and_global_state_alone():
    MODEL.train()
    out = square_eot(MODEL, X, Y, queries=3)
    assert not out.examples.requires_grad
    assert MODEL.training


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queries": 0}, "queries must be at least 1"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"p_init": 1.5}, r"p_init must be in \[0, 1\]"),
        ({"norm": "l3"}, "unknown norm"),
        ({"eps": -1}, "eps must be at least 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        square_eot(MODEL, X, Y, **settings)
