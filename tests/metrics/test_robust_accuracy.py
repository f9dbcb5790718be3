from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixup_inference import InputError
from mixup_inference.metrics import wilson
from mixup_inference.metrics.accuracy import cell_entry, difference
from mixup_inference.metrics.robust_accuracy import RobustAccuracy, paired_difference, worst_case

POINTS, REPEATS, TRIALS = 100, 5, 400


def matrices(shares, repeats=REPEATS, seed=0):
    """One fooled matrix per row of shares: each draw of a point is right with its share."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.random((*shares.shape, repeats)) >= shares[..., None])


def beta(mean, concentration, seed=0, trials=TRIALS):
    """Shares of points: all or nothing (small concentration) to all alike (large)."""
    a, b = mean * concentration, (1 - mean) * concentration
    return np.random.default_rng(seed + 1).beta(a, b, (trials, POINTS))


def covered(intervals, truth):
    return np.mean([low <= truth <= high for low, high in intervals])


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_one_draw_is_wilson(pair):
    right, total = pair
    fooled = (torch.arange(total) >= right)[:, None]
    low, high = RobustAccuracy(fooled).interval
    assert (low, high) == pytest.approx(wilson(right, total), abs=1e-9)
    assert RobustAccuracy(fooled).pessimistic.correct == right


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10**6))
def test_trials_lie_between_points_and_answers(points, repeats, seed):
    fooled = torch.from_numpy(np.random.default_rng(seed).random((points, repeats)) < 0.5)
    robust = RobustAccuracy(fooled)
    assert points - 1e-9 <= robust.trials <= points * repeats + 1e-9
    low, high = robust.interval
    assert 0 <= low <= robust.value <= high <= 1
    assert robust.pessimistic.value <= robust.value


def test_draws_that_agree_are_worth_one_and_draws_that_do_not_are_worth_more():
    agree = (torch.arange(100) < 40)[:, None].expand(100, 5)
    assert RobustAccuracy(agree).trials == pytest.approx(100)
    assert RobustAccuracy(agree).interval == pytest.approx(wilson(60, 100))
    differ = (torch.arange(500) % 5 < 2).view(100, 5)  # two of five of every point
    assert RobustAccuracy(differ).value == pytest.approx(0.6)
    assert RobustAccuracy(differ).interval == pytest.approx(wilson(300, 500))


@pytest.mark.parametrize("all_fooled", [True, False])
def test_at_the_ends_only_the_points_count(all_fooled):
    robust = RobustAccuracy(torch.full((100, 5), all_fooled))
    assert robust.trials == pytest.approx(100)
    expected = (0.0, 0.0370) if all_fooled else (0.9630, 1.0)
    assert robust.interval == pytest.approx(expected, abs=1e-4)


def test_a_lone_survivor_is_no_more_certain_than_none():
    """Without the extra half point, 1 answer of 500 would be worth 500 trials, and 0 only 100."""
    fooled = torch.ones(100, 5, dtype=torch.bool)
    fooled[3, 2] = False
    assert RobustAccuracy(fooled).trials < 200


@pytest.mark.parametrize("mean", [0.01, 0.03, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("concentration", [0.1, 1, 20])
def test_the_interval_covers(mean, concentration):
    """Points from all or nothing to all alike: 95% cover, and the width is that of the noise."""
    robust = [RobustAccuracy(fooled) for fooled in matrices(beta(mean, concentration))]
    assert covered([one.interval for one in robust], mean) >= 0.93
    if 0.1 <= mean <= 0.9:
        width = np.mean([one.interval[1] - one.interval[0] for one in robust])
        noise = np.std([one.value for one in robust])
        assert width < 1.15 * 2 * 1.96 * noise


def test_answers_taken_for_points_do_not_cover():
    """What the interval is for: 500 answers on 100 points are not 500 points."""
    fooled = matrices(beta(0.5, 0.1))
    naive = [wilson(int((~one).sum()), one.numel()) for one in fooled]
    assert covered(naive, 0.5) < 0.75


def test_entry():
    fooled = torch.tensor([[True, True], [True, False], [False, False], [False, False]])
    robust = RobustAccuracy(fooled)
    entry = robust.entry()
    low, high = robust.interval
    any_draw = {"accuracy": 0.5, "low": wilson(2, 4)[0], "high": wilson(2, 4)[1]}
    assert entry == {"accuracy": 0.625, "low": low, "high": high, "points": 4, "repeats": 2,
                     "any_draw": any_draw}  # fmt: skip


def table(both, first, second, neither):
    """The fooled matrices of two attacks, from how often both, one or neither is right."""
    a = [0] * (both + first) + [1] * (second + neither)
    b = [0] * both + [1] * first + [0] * second + [1] * neither
    return [torch.tensor(column).bool()[:, None] for column in (a, b)]


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe (1998), method 10
        ((1, 1, 7, 12), -0.507, -0.026),  # Bentur et al. (2009) in Fagerland et al. (2014)
    ],
)
def test_one_draw_is_newcombe(counts, low, high):
    assert paired_difference(*table(*counts))[1:] == pytest.approx((low, high), abs=6e-4)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_difference_is_antisymmetric(points, repeats_a, repeats_b, seed):
    rng = np.random.default_rng(seed)
    share = rng.random((points, 1))
    a, b = (torch.from_numpy(rng.random((points, n)) < share) for n in (repeats_a, repeats_b))
    value, low, high = paired_difference(a, b)
    assert low <= value <= high
    assert paired_difference(b, a) == pytest.approx((-value, -high, -low), abs=1e-12)


def test_no_difference_is_never_certain():
    none = torch.ones(100, 5, dtype=torch.bool)
    for fooled in (none, ~none):
        assert paired_difference(fooled, fooled) == pytest.approx((0, -0.037, 0.037), abs=1e-4)
    half = torch.arange(100)[:, None] < 50
    value, low, high = paired_difference(half, half)
    assert value == 0
    assert low < -0.01 < 0.01 < high


@pytest.mark.parametrize(("mean", "gap"), [(0.02, 0.0), (0.05, 0.1), (0.4, 0.0), (0.4, 0.1)])
@pytest.mark.parametrize("repeats", [(5, 5), (1, 5)])
def test_the_difference_covers_and_pairing_helps(mean, gap, repeats):
    """A point that is hard for one attack is hard for the other."""
    first = beta(mean, 0.5)
    second = first + gap * (1 - first)
    truth = mean - (mean + gap * (1 - mean))
    a = matrices(first, repeats[0], seed=5)
    b = matrices(second, repeats[1], seed=6)
    found = [paired_difference(one, two) for one, two in zip(a, b, strict=True)]
    assert covered([interval[1:] for interval in found], truth) >= 0.93
    alone = [
        difference(cell_entry_of(one), cell_entry_of(two)) for one, two in zip(a, b, strict=True)
    ]
    width, unpaired = (np.mean([high - low for _, low, high in one]) for one in (found, alone))
    assert width < 0.95 * unpaired
    if mean > 0.1:
        assert width < 1.3 * 2 * 1.96 * np.std([value for value, *_ in found])


def cell_entry_of(fooled):
    return cell_entry(RobustAccuracy(fooled).pessimistic) | RobustAccuracy(fooled).entry()


def test_worst_case_takes_the_stronger_then_the_stronger_over_all_then_the_first():
    t, f = True, False
    chosen_on = {
        "A": torch.tensor([[f, f], [t, t], [f, f], [t, f]]),
        "B": torch.tensor([[t, t], [t, t], [f, f], [f, f]]),
        "C": torch.tensor([[f], [f], [t], [f]]),  # shares count, not successes
        "D": torch.tensor([[t, t], [t, t], [f, f], [f, f]]),
    }
    reported_on = {
        "D": torch.tensor([[f, f], [f, f], [f, f], [f, f]]),
        "C": torch.tensor([[t, t], [t, t], [f, t], [t, t]]),
        "B": torch.tensor([[f, t], [t, t], [t, t], [t, t]]),
        "A": torch.tensor([[f, f], [f, f], [t, t], [t, f]]),
    }
    fooled, choice = worst_case(chosen_on, reported_on)
    assert choice == ["B", "B", "C", "A"]  # A and B are equal on the second point, B is stronger
    assert fooled.tolist() == [[f, t], [t, t], [f, t], [t, f]]


@pytest.mark.parametrize("repeats", [1, 5])
def test_choosing_and_reporting_on_the_same_draws_is_biased(repeats):
    """Six attacks that all succeed half the time: choosing by luck makes no attack stronger."""
    even = np.full((2000,), 0.5)
    chosen_on = {str(n): matrices(even, repeats, seed=n) for n in range(6)}
    reported_on = {str(n): matrices(even, repeats, seed=100 + n) for n in range(6)}
    same = RobustAccuracy(worst_case(chosen_on, chosen_on)[0])
    other = RobustAccuracy(worst_case(chosen_on, reported_on)[0])
    assert abs(other.value - 0.5) < 0.03
    assert same.interval[1] < other.interval[0] - 0.05
    if repeats == 1:  # one draw cannot tell luck from strength: all six must fail, (1/2)^6
        assert abs(same.value - 1 / 64) < 0.01


@pytest.mark.parametrize(
    ("fooled", "words"),
    [
        (torch.zeros(3, 2), "bool tensor of shape"),
        (torch.zeros(3, dtype=torch.bool), r"shape \(3,\)"),
        (torch.zeros(0, 2, dtype=torch.bool), "is empty"),
        ([[True]], "saw list"),
    ],
)
def test_bad_matrices(fooled, words):
    with pytest.raises(InputError, match=words):
        RobustAccuracy(fooled)


def test_bad_pairs():
    one, two = torch.zeros(3, 2, dtype=torch.bool), torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(InputError, match="same points"):
        paired_difference(one, two)
    for chosen_on, reported_on, words in (
        ({"A": one}, {"B": one}, "same attacks"),
        ({}, {}, "same attacks"),
        ({"A": one, "B": two}, {"A": one, "B": one}, "same points"),
        ({"A": one}, {"A": two}, "same points"),
        ({"A": one, "B": one}, {"A": one, "B": one[:, :1]}, "equally many repeats"),
    ):
        with pytest.raises(InputError, match=words):
            worst_case(chosen_on, reported_on)
