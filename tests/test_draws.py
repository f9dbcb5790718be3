from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import reference
from mixup_inference import Beta, InputError, Uniform
from mixup_inference.draws import Draws, absorb, make_key, scale_bits

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64)
def test_absorb_is_splitmix64_on_wrapping_integers(state, word):
    ours = int(absorb(torch.tensor(state), torch.tensor(word)))
    assert ours & reference.MASK == reference.absorb(state & reference.MASK, word & reference.MASK)


def grid(count=200, draws=50, name="test"):
    return Draws(make_key(0, name), torch.arange(count), torch.arange(draws))


@pytest.mark.parametrize("slot", [0, 1, 7])
def test_uniform_is_uniform(slot):
    u = grid().uniform(slot).flatten().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3


def test_normal_is_normal_and_blocks_are_independent():
    z = grid(100, 10).normal(0, (2, 3, 4))
    assert z.shape == (100, 10, 2, 3, 4)
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    columns = z.reshape(1000, 24)
    off = torch.corrcoef(columns.T) - torch.eye(24)
    assert off.abs().max() < 5 / 1000**0.5


def test_neighbouring_counters_are_uncorrelated():
    u = grid(300, 300).uniform(0) - 0.5
    for other in (
        grid(300, 300).uniform(1) - 0.5,  # next slot
        torch.roll(u, 1, 0),  # next sample
        torch.roll(u, 1, 1),  # next draw
        Draws(make_key(1, "test"), torch.arange(300), torch.arange(300)).uniform(0) - 0.5,
        grid(300, 300, "other").uniform(0) - 0.5,
    ):
        assert abs(float((u * other).mean() * 12)) < 4 / 300


@pytest.mark.parametrize("below", [1, 2, 9, 1000])
def test_integers_cover_the_range_evenly(below):
    counts = torch.bincount(grid(400, 100).integers(3, below).flatten(), minlength=below)
    assert len(counts) == below
    assert below == 1 or stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_scaling_bits_stays_below_the_limit():
    extreme = torch.tensor([-1, 0, 2**63 - 1, -(2**63)])
    for below in (1, 10, 10**6, 2**31 - 1):
        assert bool((scale_bits(extreme, below) < below).all())
        assert bool((scale_bits(extreme, below) >= 0).all())


@pytest.mark.parametrize(
    ("ratio", "reference_distribution"),
    [
        (Uniform(0.2, 0.7), stats.uniform(0.2, 0.5)),
        (Beta(1, 1), stats.uniform()),
        (Beta(0.4, 0.4), stats.beta(0.4, 0.4)),
        (Beta(2.0, 5.0), stats.beta(2, 5)),
    ],
)
def test_ratios_follow_their_distribution(ratio, reference_distribution):
    values = ratio.quantile(grid().uniform(0)).flatten().numpy()
    assert stats.kstest(values, reference_distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    "make", [lambda: Uniform(0.7, 0.2), lambda: Uniform(-0.1, 1), lambda: Beta(0, 1)]
)
def test_bad_distributions_are_refused(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("count", [1, 9, 50])
@pytest.mark.parametrize("k", [torch.arange(50), torch.tensor([7, 3, 44])])
def test_permutations_in_a_graph_are_the_same(count, k):
    """There the values of k are unknown, and each draw has the order of its round to itself."""
    draws = Draws(make_key(0, "graph"), torch.arange(20) - 10, k)
    assert torch.equal(draws._permutation_by_draw(3, count), draws.permutation(3, count))
