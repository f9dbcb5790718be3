from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mixup_inference import CombinedInference, InputError, MixupInference, evaluate
from mixup_inference.evaluation import Accuracy
from mixup_inference.metrics import wilson
from mixup_inference.metrics.accuracy import as_bits, cell_entry, difference, from_bits


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_scipy(pair):
    theirs = binomtest(*pair).proportion_ci(method="wilson")
    low, high = wilson(*pair)
    assert low == pytest.approx(theirs.low, abs=1e-9)
    assert high == pytest.approx(theirs.high, abs=1e-9)
    assert 0 <= low <= pair[0] / pair[1] <= high <= 1


def test_reads_well():
    assert str(Accuracy(471, 500)) == "94.2% [91.8%, 95.9%]"


@pytest.mark.parametrize("counts", [(3, 2), (-1, 5), (0, 0)])
def test_impossible_counts(counts):
    with pytest.raises(InputError):
        wilson(*counts)


def test_counts_what_is_right_and_what_it_costs(trained, pool, parts):
    x, y, index = parts["test"].pixels, parts["test"].labels, parts["test"].index
    plain = evaluate(trained, x, y)
    assert plain.correct == int((trained(x).argmax(1) == y).sum())
    assert plain.passes == 1
    mi = MixupInference(trained, pool, draws=6)
    result = evaluate(mi, x, y, index=index)
    assert result.correct == int((mi(x, index=index, stream="evaluate").argmax(1) == y).sum())
    assert result.passes == 7
    combined = evaluate(CombinedInference(trained, pool, threshold=0.02, draws=6), x, y)
    assert 7 < combined.passes < 13


def test_does_not_depend_on_the_batch_size_and_repeats(trained, pool, parts):
    x, y = parts["test"].pixels, parts["test"].labels
    mi = MixupInference(trained, pool, draws=4)
    results = [evaluate(mi, x, y, batch_size=size) for size in (200, 64, 200)]
    assert results[0] == results[2]
    assert abs(results[0].correct - results[1].correct) <= 1  # a near-tie may turn by rounding


def test_a_frozen_defence_is_measured_on_its_frozen_draws(trained, pool, parts):
    x, y = parts["test"].pixels, parts["test"].labels
    frozen = MixupInference(trained, pool, draws=1, lam=0.4, fresh=False)
    expected = int((frozen(x).argmax(1) == y).sum())
    assert evaluate(frozen, x, y).correct == expected
    assert evaluate(frozen, x, y, index=parts["test"].index).correct != expected


@pytest.mark.usefixtures("same_global_state")
def test_leaves_no_trace(trained, parts):
    x, y = parts["test"].pixels[:10], parts["test"].labels[:10]
    trained.train()
    evaluate(trained, x, y)
    assert trained.training
    trained.eval()


def test_bad_inputs(trained, parts):
    x, y = parts["test"].pixels, parts["test"].labels
    for args, words in (
        ((x * 255, y), "Divide by 255"),
        ((x, y[:5]), "5 labels for 200 images"),
        ((x, y + 1), "number of classes"),
        ((x[:0], y[:0]), "empty batch"),
    ):
        with pytest.raises(InputError, match=words):
            evaluate(trained, *args)
    assert torch.equal(y, parts["test"].labels)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_bits_say_which_points_are_right(right):
    text = as_bits(torch.tensor(right))
    assert from_bits(text, len(right)).tolist() == right
    assert len(text) == 2 * -(-len(right) // 8)


@pytest.mark.parametrize("text", ["", "f", "ffff", "zz", None])
def test_other_digits_are_refused(text):
    with pytest.raises(InputError, match="does not say which of 5 points"):
        from_bits(text, 5)


def entry(right):
    return cell_entry(Accuracy(int(right.sum()), len(right))) | {"right": as_bits(right)}


def test_cells_of_the_same_points_are_compared_in_pairs():
    """Newcombe (1998), paired proportions, method 10: 36 right in both, 12 and 2 in one only."""
    a, b = (torch.arange(50) < 48, (torch.arange(50) < 36) | (torch.arange(50) >= 48))
    assert difference(entry(a), entry(b)) == pytest.approx((0.2, 0.0569, 0.3404), abs=1e-4)
    plain = [cell_entry(Accuracy(n, 50)) for n in (48, 38)]
    assert difference(plain[0], entry(b)) == difference(*plain)  # nothing to pair with
    easy = torch.arange(1000)
    narrow = difference(entry(easy < 500), entry(easy < 480))
    wide = difference(*(cell_entry(Accuracy(n, 1000)) for n in (500, 480)))
    assert narrow[1] > 0 > wide[1]
