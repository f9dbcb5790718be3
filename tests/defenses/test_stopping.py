"""Stopping early: the label of all draws, or that of infinitely many with a stated error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mixup_inference import (
    CombinedInference,
    InputError,
    MixupDetector,
    MixupInference,
    Pool,
    Uniform,
    evaluate,
    pgd,
)
from mixup_inference.defenses.early_stopping import _bound, until_decided
from mixup_inference.defenses.stopping_rules import WhichLabel, WhichSide, _t_of_mean, _t_quantiles

torch.manual_seed(0)
L = 4
X = torch.rand(40, 1, 3, 3).double()
INDEX = torch.arange(40)
POOL = Pool(torch.rand(12, 1, 3, 3).double(), torch.arange(12) % L)


def network(scale: float) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, L)).double().eval()
    with torch.no_grad():
        net[3].weight *= scale
    return net


@given(
    labels=st.sampled_from(["other", "predicted", (0.5, 0.2, 0.3, 0.0)]),
    sampling=st.sampled_from(["independent", "stratified"]),
    variate=st.booleans(),
    lam=st.sampled_from([0.2, 0.5, 0.8, Uniform(0.2, 0.8)]),
    draws=st.integers(1, 20),
    scale=st.sampled_from([1.0, 6.0, 30.0]),
    seed=st.integers(0, 100),
)
def test_exact_has_the_label_of_all_draws(labels, sampling, variate, lam, draws, scale, seed):
    options = {
        "labels": labels, "sampling": sampling, "control_variate": variate, "lam": lam,
        "draws": draws, "seed": seed,
    }  # fmt: skip
    model = network(scale)
    full = MixupInference(model, POOL, **options)(X, index=INDEX)
    log_p, used = MixupInference(model, POOL, stop="exact", **options).decide(X, index=INDEX)
    assert torch.equal(log_p.argmax(1), full.argmax(1))
    assert int(used.max()) <= draws
    torch.testing.assert_close(log_p[used == draws], full[used == draws])
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(40).double())


@given(
    convention=st.sampled_from(["paper", "official"]),
    sampling=st.sampled_from(["independent", "stratified"]),
    variate=st.booleans(),
    lam=st.sampled_from([0.2, 0.5, Uniform(0.2, 0.8)]),
    draws=st.integers(1, 20),
    scale=st.sampled_from([1.0, 6.0, 30.0]),
    threshold=st.sampled_from([-0.1, 0.0, 0.02, 0.1, 0.3, 1.0]),
    seed=st.integers(0, 100),
)
def test_exact_detects_what_all_draws_detect(
    convention, sampling, variate, lam, draws, scale, threshold, seed
):
    same = {
        "convention": convention, "sampling": sampling, "control_variate": variate,
        "draws": draws, "seed": seed, "threshold": threshold,
    }  # fmt: skip
    model = network(scale)
    full = MixupDetector(model, POOL, lam=lam, **same)
    flags, used = MixupDetector(model, POOL, lam=lam, stop="exact", **same).decide(X, index=INDEX)
    assert torch.equal(flags, full.score(X, index=INDEX) > threshold)
    assert int(used.max()) <= draws
    ratios = {"lam_detect": lam, "lam_defend": 0.4}
    plain = CombinedInference(model, POOL, **ratios, **same)(X, index=INDEX)
    stopping = CombinedInference(model, POOL, stop="exact", **ratios, **same)
    assert torch.equal(stopping(X, index=INDEX).argmax(1), plain.argmax(1))


def test_a_side_that_cannot_change_is_left():
    far = MixupDetector(network(6.0), POOL, threshold=1.0, draws=30, stop="exact")
    flags, used = far.decide(X, index=INDEX)
    assert not flags.any()
    assert int(used.max()) == 3  # one unit, before the first decision
    near = MixupDetector(network(6.0), POOL, threshold=0.1, draws=30, stop="exact")
    assert 5 < float(near.decide(X, index=INDEX)[1].double().mean()) < 28


def test_exact_saves_draws():
    mi = MixupInference(network(30.0), POOL, lam=0.9, draws=30, stop="exact")
    _, used = mi.decide(X, index=INDEX)
    assert 15 <= int(used.min()) <= 18  # half of them and one is the least there can be
    assert float(used.double().mean()) < 25


@pytest.mark.parametrize("stop", ["exact", "likely", "confident"])
@pytest.mark.parametrize("sampling", ["independent", "stratified"])
def test_what_is_drawn_does_not_depend_on_the_batch(stop, sampling):
    options = {"draws": 40, "stop": stop, "sampling": sampling, "lam": 0.8, "error": 0.2}
    model = network(30.0)
    log_p, used = MixupInference(model, POOL, **options).decide(X, index=INDEX)
    assert len(used.unique()) > 1
    order = torch.randperm(40)[:13]
    for chunk in (1, 7, 50, 1000):
        mi = MixupInference(model, POOL, chunk=chunk, **options)
        some, count = mi.decide(X[order], index=INDEX[order])
        torch.testing.assert_close(some, log_p[order])
        assert torch.equal(count, used[order])
        torch.testing.assert_close(mi(X[order], index=INDEX[order]), some)


def test_batches_are_full_and_no_larger_than_the_chunk():
    sizes = []
    model = network(30.0)
    mi = MixupInference(model, POOL, lam=0.9, draws=30, stop="exact", chunk=24)
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    _, used = mi.decide(X, index=INDEX)
    passes = sizes[2:]  # after those on the inputs themselves
    assert max(sizes) == 24
    assert sum(passes) == int(used.sum())
    full = [size == 24 for size in passes]
    assert full[: full.index(False)] == [True] * full.index(False)
    assert full.index(False) > 0.7 * len(passes)


def test_gradients_take_all_draws():
    stopping = MixupInference(network(6.0), POOL, draws=9, stop="exact", lam=0.9)
    leaf = X.clone().requires_grad_()
    out = stopping(leaf, index=INDEX)
    assert out.requires_grad
    torch.testing.assert_close(
        out, MixupInference(network(6.0), POOL, draws=9, lam=0.9)(X, index=INDEX)
    )


def coins(samples, draws, gap, noise, *, seed=0):
    """Predictions of three classes, whose first leads the second by ``gap`` in expectation."""
    generator = torch.Generator().manual_seed(seed)
    shift = noise * (2 * torch.rand(samples, draws, generator=generator).double() - 1)
    first = 0.4 + gap / 2 + shift
    return torch.stack([first, 0.8 - first, torch.full_like(first, 0.2)], dim=2)


WHICH_LABEL = WhichLabel(1.0)


def decide(p, *, unit=5, error=0.05, question=WHICH_LABEL):
    draws = p.shape[1]
    sums, used = until_decided(
        lambda rows, k: p[rows, k],
        lambda rows, seen, used: question.certain(rows, seen, used, error),
        like=p[:, 0], draws=draws, unit=unit, chunk=500,
    )  # fmt: skip
    return sums.argmax(1), used


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_the_error_is_as_stated_at_the_worst(noise):
    """Two classes with the same expectation: whichever is called the larger is an error at most."""
    p = coins(4000, 300, 0.0, noise)
    _, used = decide(p, error=0.1)
    early = float((used < 300).double().mean())
    # Either of the two may be called larger, each with a probability of error / 2.
    assert early < 0.1 + 3 * math.sqrt(0.1 * 0.9 / 4000)
    if noise == 0.4:
        assert early > 0.005  # it does stop, so this is a test


def test_clear_labels_take_few_draws_and_close_ones_many():
    clear, used_clear = decide(coins(500, 300, 0.6, 0.1))
    close, used_close = decide(coins(500, 300, 0.1, 0.4))
    assert bool((clear == 0).all())
    assert float((close == 0).double().mean()) > 0.97
    assert float(used_clear.double().mean()) < 20
    assert 60 < float(used_close.double().mean()) < 300


def test_the_error_is_as_stated_with_stratified_draws():
    """Labels of which each favours one of two classes, and that are even in a round."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(4000, 40, 6, generator=generator).argsort(2).flatten(1)
    first = 0.5 + torch.tensor([-0.4, -0.2, -0.1, 0.1, 0.2, 0.4]).double()[order]
    first += 0.1 * (torch.rand(4000, 240, generator=generator).double() - 0.5)
    p = torch.stack([first, 1 - first], dim=2)
    _, used = decide(p, unit=6, error=0.1)
    assert float((used < 240).double().mean()) < 0.1 + 3 * math.sqrt(0.1 * 0.9 / 4000)
    better = p + torch.tensor([0.1, -0.1]).double()
    label, used = decide(better, unit=6)
    assert bool((label == 0).all())
    assert float(used.double().mean()) < 120


@pytest.mark.parametrize("noise", [0.05, 0.4])
@pytest.mark.parametrize("largest", [False, True])
def test_the_error_of_a_side_is_as_stated_at_the_worst(noise, largest):
    """A mean that is at the level: whichever side is called is an error at most."""
    p = coins(4000, 300, 0.1, noise)
    level = torch.full((4000,), 0.45).double()
    column = None if largest else torch.zeros(4000, dtype=torch.int64)
    side = WhichSide(level, column, 0.0)
    _, used = decide(p, error=0.1, question=side)
    early = float((used < 300).double().mean())
    assert early < (0.1 if largest else 0.2) + 3 * math.sqrt(0.2 * 0.8 / 4000)
    if noise == 0.4:
        assert early > 0.005  # it does stop, so this is a test
    for shift, above in ((-0.1, True), (0.1, False)):
        off = WhichSide(level + shift, column, 0.0)
        _, used = decide(p, question=off)
        mean = (p[..., 0] * (torch.arange(300) < used[:, None])).sum(1) / used
        assert float(((mean > level + shift) == above).double().mean()) > 0.95
        assert float(used.double().mean()) < 280


def test_a_confident_detector_agrees_with_many_draws(trained, pool, parts):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    x = torch.cat([x, pgd(trained, x, y, eps=0.1, step=0.025)])
    index = torch.arange(120)
    score = MixupDetector(trained, pool, draws=3000).score(x, index=index)
    threshold = float(score.quantile(0.7))
    sure = score > threshold
    for better in ({}, {"control_variate": True}, {"sampling": "stratified"}):
        quick = MixupDetector(
            trained, pool, threshold=threshold, draws=300, stop="confident", **better
        )
        found, used = quick.decide(x, index=index, stream="other")
        early = used < 300
        assert 0.3 < float(early.double().mean()) <= 1
        assert int((found != sure)[early].sum()) <= 6  # 5% of 120


def test_a_confident_combination_counts_what_it_draws(trained, pool, parts):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    x = pgd(trained, x, y, eps=0.1, step=0.025)
    options = {"threshold": 0.05, "draws": 300}
    many = CombinedInference(trained, pool, **options)(x, index=torch.arange(60))
    quick = CombinedInference(trained, pool, stop="confident", **options)
    log_p, used = quick.decide(x, index=torch.arange(60), stream="other")
    assert float((log_p.argmax(1) == many.argmax(1)).double().mean()) > 0.8
    assert int(used.max()) > 300 > int(used.min())  # some have had both kinds of draws
    found = evaluate(quick, x, y, stream="other")
    assert found.passes == pytest.approx(1 + float(used.double().mean()))


@pytest.mark.parametrize("better", [{}, {"sampling": "stratified"}, {"control_variate": True}])
def test_confident_labels_are_those_of_many_draws(trained, pool, parts, better):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    x = pgd(trained, x, y, eps=0.1, step=0.025)  # where labels are close
    sure = MixupInference(trained, pool, draws=3000)(x, index=torch.arange(60)).argmax(1)
    mi = MixupInference(trained, pool, draws=300, stop="confident", error=0.05, **better)
    log_p, used = mi.decide(x, index=torch.arange(60), stream="other")
    early = used < 300
    assert 0.3 < float(early.double().mean()) < 1
    assert int((log_p.argmax(1) != sure)[early].sum()) <= 3
    found = evaluate(mi, x, y, stream="other")
    assert found.passes == pytest.approx(1 + float(used.double().mean()))


def test_no_draw_is_below_the_bound():
    mi = MixupInference(network(30.0), POOL, lam=Uniform(0.1, 0.6), draws=50, control_variate=True)
    mi.prepare()
    assert _bound(mi) > 1.9
    every = mi.predictions.each[:, :, None] - mi.predictions.each[:, None]
    mean = mi.predictions.mean[:, :, None] - mi.predictions.mean[:, None]
    largest = float((every[None] - mean[:, None]).abs().max())
    assert 1 + 0.9 * largest <= _bound(mi) + 1e-9


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("made", [4, 8, 20])
def test_the_mean_of_all_draws_is_where_likely_expects_it(spread, made):
    """For normal draws it is farther away with the stated probability, or less with a prior."""
    noise = torch.randn(20_000, 30, 1, generator=torch.Generator().manual_seed(made))
    values = spread * noise.double()
    used = torch.full((20_000,), made)
    away = _t_of_mean(values - values.mean(1, keepdim=True), used, 30)[:, 0]
    outside = float((away > _t_quantiles(30, 0.05)[used]).double().mean())
    assert outside < 0.055
    if spread > 0.2:  # the prior deviation is small beside it
        assert outside > 0.045


def test_likely_does_not_trust_a_few_equal_draws():
    level = torch.tensor([0.5])
    question = WhichSide(level, torch.tensor([0]), 0.0)
    row = torch.tensor([0])
    for mean, stops in ((0.52, False), (0.7, True)):
        seen = torch.full((1, 4, 2), mean)
        assert bool(question.likely(row, seen, torch.tensor([4]), 30, 0.01)) is stops


@pytest.mark.parametrize("threshold", [0.0, 0.03])
@pytest.mark.parametrize("better", [{}, {"sampling": "stratified"}, {"control_variate": True}])
def test_likely_answers_as_all_draws_do_and_takes_fewer(trained, pool, parts, threshold, better):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    x = torch.cat([x, pgd(trained, x, y, eps=0.1, step=0.025)])
    index = torch.arange(120)
    options = {"threshold": threshold, "draws": 30, **better}
    every = MixupDetector(trained, pool, **options).detect(x, index=index)
    quick = MixupDetector(trained, pool, stop="likely", error=0.01, **options)
    found, used = quick.decide(x, index=index)
    assert int((found != every).sum()) <= 4
    exact = MixupDetector(trained, pool, stop="exact", **options)
    assert float(used.double().mean()) < 0.8 * float(
        exact.decide(x, index=index)[1].double().mean()
    )
    labels = MixupInference(trained, pool, draws=30, **better)(x, index=index).argmax(1)
    mi = MixupInference(trained, pool, draws=30, stop="likely", error=0.01, **better)
    log_p, used = mi.decide(x, index=index)
    assert int((log_p.argmax(1) != labels).sum()) <= 4
    assert float(used.double().mean()) < 22


def test_mistakes():
    with pytest.raises(InputError, match="exact"):
        MixupInference(network(1.0), POOL, stop="exactly")
    with pytest.raises(InputError, match="error"):
        MixupInference(network(1.0), POOL, stop="confident", error=0.0)
