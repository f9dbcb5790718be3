"""Stratified draws and the control variate: the same expectation, less noise."""

from __future__ import annotations

import copy
import pickle

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
)
from mixup_inference.defenses import mean_prediction
from mixup_inference.defenses.label_distribution import label_distribution
from mixup_inference.draws import Draws, make_key
from mixup_inference.models.call import count_passes
from synthetic import CLASSES, LinearPlusG, class_part, clean_samples

torch.manual_seed(0)
L = 4
MODEL = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, L)).double().eval()
with torch.no_grad():
    MODEL[3].weight *= 4
X = torch.rand(7, 2, 3, 3).double()
POOL = Pool(torch.rand(12, 2, 3, 3).double(), torch.arange(12) % L)
INDEX = torch.arange(7)
WEIGHTS = [0.1, 0.2, 0.7, 0.0]
RULES = ["other", "predicted", WEIGHTS]
BETTER = [
    {"sampling": "stratified"},
    {"control_variate": True},
    {"sampling": "stratified", "control_variate": True},
]


def make(**options) -> MixupInference:
    return MixupInference(MODEL, POOL, **({"lam": 0.4, "draws": 5} | options))


def draws(count, samples=50, key="test") -> Draws:
    return Draws(make_key(0, key), torch.arange(samples), torch.arange(count))


def exact(labels, lam=0.4):
    """The expectation by enumeration of the pool."""
    y_hat = MODEL(X).argmax(1)
    weights = label_distribution(labels, L).weights()[y_hat]  # (samples, classes)
    each = torch.stack(
        [MODEL(lam * X + (1 - lam) * image).softmax(1) for image in POOL.images], dim=1
    )
    share = weights[:, POOL.labels] / torch.bincount(POOL.labels)[POOL.labels]
    return (share[..., None] * each).sum(1)


# The draws


@given(count=st.integers(1, 7), length=st.integers(1, 30), start=st.integers(0, 20))
def test_permutations_hold_every_label_once_a_round_and_do_not_depend_on_the_length(
    count, length, start
):
    whole = draws(60, samples=3).permutation(0, count)
    for number in range(60 // count):
        part = whole[:, number * count : (number + 1) * count]
        assert torch.equal(part.sort(1).values, torch.arange(count).expand(3, -1))
    some = Draws(make_key(0, "test"), torch.arange(3), torch.arange(start, start + length))
    assert torch.equal(some.permutation(0, count), whole[:, start : start + length])


def test_every_label_is_as_likely_at_every_place():
    found = draws(5, samples=20_000).permutation(0, 3)
    for place in range(5):
        counts = torch.bincount(found[:, place], minlength=3)
        assert float((counts - 20_000 / 3).abs().max()) < 4 * (20_000 * 2 / 9) ** 0.5
    repeated = (found[:, 0] == found[:, 3]).double().mean()  # rounds do not depend on each other
    assert abs(float(repeated) - 1 / 3) < 0.015


def test_stratified_numbers_are_uniform_and_once_in_each_part():
    found = draws(14, samples=5000).stratified(1, 7)
    assert float(found.min()) >= 0
    assert float(found.max()) < 1
    parts = (found * 7).long()
    for half in parts.split(7, dim=1):
        assert torch.equal(half.sort(1).values, torch.arange(7).expand(5000, -1))
    for place in (0, 8):
        assert abs(float(found[:, place].mean()) - 0.5) < 4 * 12**-0.5 / 5000**0.5
        inside = (found[:, place] * 7) % 1
        assert abs(float(inside.mean()) - 0.5) < 4 * 12**-0.5 / 5000**0.5
    both = torch.stack([draws(1, samples=5000).stratified(slot, 7)[:, 0] for slot in (0, 1)])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / 5000**0.5  # slots have nothing in common


def test_stratified_labels_are_the_allowed_ones_equally_often():
    mi = make(sampling="stratified")
    y_hat = torch.arange(7) % L
    _, numbers = mi.partners(y_hat, Draws(make_key(0, "a"), INDEX, torch.arange(3 * (L - 1))))
    drawn = POOL.labels[numbers]
    for row, label in zip(drawn, y_hat.tolist(), strict=True):
        assert torch.bincount(row, minlength=L).tolist() == [3 * (c != label) for c in range(L)]


# The expectation


@pytest.mark.parametrize("better", BETTER)
@pytest.mark.parametrize("labels", RULES)
def test_unbiased_against_enumeration(labels, better):
    """The mean of many answers of one draw, and of five, which is no whole number of rounds."""
    for count in (1, 5):
        mi = make(labels=labels, draws=count, **better)
        index = torch.arange(4000)
        for row, expected in zip(X, exact(labels), strict=True):
            # Without the logarithm, whose clamp is not linear.
            out = raw(mi, row.expand(4000, -1, -1, -1), index)
            error = out.std(0) / 4000**0.5
            assert bool(((out.mean(0) - expected).abs() < 4.5 * error + 1e-12).all())


def raw(mi, x, index):
    """What the logarithm is taken of, before it is clamped and normalised."""
    look = mi.base_log_probs(x).argmax(1)
    numbers = mi.numbers(x, index)
    p = mean_prediction(mi.average(x, look, numbers, reduce=None)).exp()
    if mi.predictions is None:
        return p
    mi.prepare()
    lam, chosen = mi.partners(look, numbers)
    chance = mi.predictions.each[chosen] - mi.predictions.mean[look][:, None]
    out = p - ((1 - lam)[..., None] * chance).mean(1)
    clamped = out.clamp(min=1e-300)
    torch.testing.assert_close(mi(x, index=index).exp(), clamped / clamped.sum(1, keepdim=True))
    return out


@pytest.mark.parametrize("better", BETTER[1:])
@pytest.mark.parametrize("lam", [0.3, Uniform(0.2, 0.9)])
def test_a_linear_model_is_exact_with_one_draw(better, lam):
    """F(x~) = lam F(x) + (1 - lam) F(x_s) on clean samples: only lam is left to chance."""
    images, labels = clean_samples(6)
    mi = MixupInference(LinearPlusG(), Pool(images, labels), lam=lam, draws=1, **better)
    out = mi(images, index=torch.arange(len(images))).exp()
    share, _ = mi.partners(
        labels, Draws(make_key(0, "index", 0), torch.arange(len(images)), torch.arange(1))
    )
    others = (1 - class_part(images)) / (CLASSES - 1)
    torch.testing.assert_close(out, share * class_part(images) + (1 - share) * others)


def test_less_noise_for_the_same_draws(trained, pool, parts):
    """On a mixup-trained network the variance of the answer falls with each of the two."""
    x = parts["test"].pixels[:40]
    noise = []
    for better in ({}, *BETTER):
        mi = MixupInference(trained, pool, draws=9, **better)
        answers = torch.stack(
            [mi(x, index=torch.arange(40), stream=stream).exp() for stream in range(12)]
        )
        noise.append(float(answers.var(0).sum(1).mean()))
    independent, stratified, corrected, both = noise
    assert stratified < 0.7 * independent
    assert corrected < 0.7 * independent
    assert both < min(stratified, corrected)


# As a module


@pytest.mark.parametrize("better", BETTER)
@pytest.mark.parametrize("labels", RULES)
def test_draws_belong_to_samples_and_are_the_first_of_more(labels, better):
    mi = make(labels=labels, **better)
    out = mi(X, index=INDEX)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(7).double())
    order = torch.tensor([5, 2, 6, 0])
    torch.testing.assert_close(mi(X[order], index=INDEX[order]), out[order])
    for chunk in (1, 3, 11):
        torch.testing.assert_close(make(labels=labels, chunk=chunk, **better)(X, index=INDEX), out)
    torch.testing.assert_close(
        mi.draw(X, 9, index=INDEX)[:, :4], mi.draw(X, 4, index=INDEX), rtol=1e-9, atol=1e-12
    )
    for twin in (pickle.loads(pickle.dumps(mi)), copy.deepcopy(mi), mi.frozen()):  # noqa: S301
        torch.testing.assert_close(twin(X, index=INDEX), out)


def test_the_pool_passes_once_and_again_when_the_model_changes():
    model = copy.deepcopy(MODEL)
    mi = MixupInference(model, POOL, control_variate=True, draws=3)
    with count_passes(model) as passes:
        mi(X)
        mi(X)
    assert passes.forward == 12 + 2 * (7 + 21)
    assert mi.prepare() == 0
    with torch.no_grad():
        model[3].bias += 1
    assert mi.prepare() == 12
    torch.testing.assert_close(mi.predictions.each, model(POOL.images).softmax(1))
    found = evaluate(MixupInference(model, POOL, control_variate=True, draws=3), X, INDEX % L)
    assert (found.passes, found.prepared) == (4, 12)
    again = evaluate(mi, X, INDEX % L)  # prepared before: the same report
    assert (again.passes, again.prepared) == (4, 12)


@pytest.mark.parametrize("better", BETTER)
def test_gradients_are_those_of_the_mean_prediction(better):
    mi = make(draws=3, **better)
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(mi(x, index=INDEX).exp()[:, 0].sum(), x)
    assert bool(found.isfinite().all())
    if mi.predictions is None:
        return
    leaf = X.clone().requires_grad_()
    drawn = mi.average(leaf, MODEL(X).argmax(1), mi.numbers(X, INDEX), reduce=None)
    plain = mean_prediction(drawn).exp()
    p = plain - (plain - raw(mi, X, INDEX)).detach()
    p = p.clamp(min=1e-300)
    (expected,) = torch.autograd.grad((p / p.sum(1, keepdim=True))[:, 0].sum(), leaf)
    torch.testing.assert_close(found, expected)


def test_the_largest_component_is_that_of_the_unclamped_prediction():
    """Also where components are negative, which must occur for this to be a test."""
    steep = copy.deepcopy(MODEL)
    with torch.no_grad():
        steep[3].weight *= 10
    mi = MixupInference(steep, POOL, draws=1, lam=0.9, control_variate=True)
    x = torch.rand(500, 2, 3, 3).double()
    index = torch.arange(500)
    look = steep(x).argmax(1)
    lam, numbers = mi.partners(look, Draws(make_key(0, "index", 0), index, torch.arange(1)))
    mixed = lam[..., None, None] * x + (1 - lam[..., None, None]) * POOL.images[numbers[:, 0]]
    mi.prepare()
    p = steep(mixed).softmax(1).detach() - 0.1 * (
        mi.predictions.each[numbers[:, 0]] - mi.predictions.mean[look]
    )
    assert float(p.min()) < -0.01
    out = mi(x, index=index)
    assert bool(out.isfinite().all())
    assert torch.equal(out.argmax(1), p.argmax(1))


def test_a_rule_of_the_callers_has_no_known_expectation():
    def rule(y_hat, u):
        return (y_hat + 1) % L

    with pytest.raises(InputError, match="how often each label"):
        make(labels=rule, control_variate=True)
    assert make(labels=rule, sampling="stratified")(X, index=INDEX).shape == (7, L)
    with pytest.raises(InputError, match="stratified"):
        make(sampling="stratify")


def test_detector_and_combined_pass_it_on():
    options = {"sampling": "stratified", "control_variate": True, "draws": 6}
    detector = MixupDetector(MODEL, POOL, **options)
    assert detector.inference.sampling == "stratified"
    assert detector.inference.control_variate
    combined = CombinedInference(MODEL, POOL, threshold=-1.0, lam_defend=0.4, **options)
    assert combined.prepare() == 24
    inner = combined.defender(X, index=INDEX)
    torch.testing.assert_close(inner, make(**options)(X, index=INDEX))
