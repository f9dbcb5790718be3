from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixup_inference import InputError, MixupDetector, MixupInference, Pool, pgd
from mixup_inference.metrics.roc import auc, auc_interval, roc
from synthetic import TARGET, LinearPlusG, clean_samples, perturb

scores = st.lists(st.integers(-3, 3).map(lambda n: n / 4), min_size=1, max_size=30)


def test_score_is_the_drop_of_the_predicted_component(trained, pool, parts):
    test = parts["test"]
    detector = MixupDetector(trained, pool, draws=4)
    mi = MixupInference(trained, pool, labels="predicted", draws=4)
    p, p_mi = trained(test.pixels).softmax(1), mi.predict_proba(test.pixels, index=test.index)
    y_hat = p.argmax(1, keepdim=True)
    expected = (p.gather(1, y_hat) - p_mi.gather(1, y_hat)).squeeze(1)
    torch.testing.assert_close(detector.score(test.pixels, index=test.index), expected.detach())
    official = MixupDetector(trained, pool, draws=4, convention="official")
    torch.testing.assert_close(
        official.score(test.pixels, index=test.index), (p.amax(1) - p_mi.amax(1)).detach()
    )


def test_calibration_keeps_its_promise_on_other_clean_points(trained, pool, parts):
    calibration, test = parts["calibration"], parts["test"]
    detector = MixupDetector(trained, pool, draws=8)
    for rate in (0.05, 0.2):
        detector.calibrate(calibration.pixels, false_positive_rate=rate, index=calibration.index)
        on_calibration = detector.detect(
            calibration.pixels, index=calibration.index, stream="calibrate"
        )
        assert rate - 2 / 201 <= float(on_calibration.float().mean()) <= rate
        flagged = detector.detect(test.pixels, index=test.index).float().mean()
        deviation = (2 * rate * (1 - rate) / 200) ** 0.5  # of two samples of 200
        assert abs(float(flagged) - rate) < 4 * deviation


@given(scores, scores)
def test_auc_is_the_share_of_pairs_in_the_right_order(clean, adversarial):
    pairs = [(high > low) + (high == low) / 2 for high in adversarial for low in clean]
    ours = auc(torch.tensor(clean), torch.tensor(adversarial))
    assert ours == pytest.approx(sum(pairs) / len(pairs))


def test_auc_of_real_scores_is_the_share_of_pairs_in_the_right_order(trained, pool, parts):
    test = parts["test"]
    attacked = pgd(trained, test.pixels, test.labels, eps=0.2, step=0.05, targeted=True)
    detector = MixupDetector(trained, pool, labels="other", lam=0.7, draws=20)
    clean, wrong = (detector.score(x, index=test.index) for x in (test.pixels, attacked))
    pairs = (wrong[:, None] > clean).double() + (wrong[:, None] == clean).double() / 2
    assert auc(clean, wrong) == pytest.approx(float(pairs.mean()))


@given(scores, scores)
def test_roc_counts_what_each_threshold_flags(clean, adversarial):
    ours = roc(torch.tensor(clean), torch.tensor(adversarial))
    thresholds = [math.inf, *sorted({*clean, *adversarial}, reverse=True)]
    for rates, values in zip(ours, (clean, adversarial), strict=True):
        flagged = [sum(v >= t for v in values) / len(values) for t in thresholds]
        np.testing.assert_allclose(rates, flagged, atol=1e-15)
    area = float(torch.trapezoid(ours[1], ours[0]))
    assert area == pytest.approx(auc(torch.tensor(clean), torch.tensor(adversarial)))
    assert [float(rate[0]) for rate in ours] == [0, 0]
    assert [float(rate[-1]) for rate in ours] == [1, 1]


def slow_variance(clean, adversarial):
    """The AUC and DeLong's variance, pair by pair."""
    wins = (adversarial[:, None] > clean) + 0.5 * (adversarial[:, None] == clean)
    per_adversarial, per_clean = wins.mean(1), wins.mean(0)
    spread = np.var(per_adversarial, ddof=1) / len(adversarial) + np.var(per_clean, ddof=1) / len(
        clean
    )
    return wins.mean(), spread


def logit(p):
    return math.log(p / (1 - p))


def normal_scores(seed, clean=60, adversarial=90, shift=1.0):
    generator = np.random.default_rng(seed)
    return generator.normal(0, 1, clean), generator.normal(shift, 1.5, adversarial)


@pytest.mark.parametrize("decimals", [0, 1, 8])  # many ties, some, none
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_is_delongs(decimals, level):
    clean, adversarial = (np.round(s, decimals) for s in normal_scores(decimals))
    area, variance = slow_variance(clean, adversarial)
    ends = auc_interval(torch.tensor(clean), torch.tensor(adversarial), level)
    middle = (logit(ends[0]) + logit(ends[1])) / 2
    half = (logit(ends[1]) - logit(ends[0])) / 2
    z = {0.8: 1.2815515655446004, 0.95: 1.959963984540054}[level]
    assert middle == pytest.approx(logit(area))
    assert half == pytest.approx(z * variance**0.5 / (area * (1 - area)))  # delta method


def test_interval_agrees_with_the_bootstrap():
    clean, adversarial = normal_scores(3, 200, 150)
    generator = np.random.default_rng(0)

    def resampled():
        again = (generator.choice(s, len(s)) for s in (clean, adversarial))
        return auc(*(torch.tensor(s) for s in again))

    areas = [resampled() for _ in range(2000)]
    ends = auc_interval(torch.tensor(clean), torch.tensor(adversarial))
    assert ends == pytest.approx(np.quantile(areas, [0.025, 0.975]), abs=0.012)  # of 0.1 wide


@pytest.mark.parametrize(
    ("shift", "truth", "least"), [(0.0, 0.5, 0.94), (1.0, 0.71045, 0.94), (4.0, 0.98675, 0.91)]
)
def test_interval_covers_the_true_area_about_as_often_as_it_says(shift, truth, least):
    """AUC of N(0, 1) against N(shift, 1.5^2) is Phi(shift / sqrt(1 + 1.5^2))."""
    runs = 1500
    covered = plainly = 0
    for seed in range(runs):
        sample = normal_scores(seed, 40, 60, shift)
        low, high = auc_interval(*(torch.tensor(s) for s in sample))
        covered += low <= truth <= high
        area, variance = slow_variance(*sample)
        plainly += abs(area - truth) <= 1.96 * variance**0.5
    assert least < covered / runs < 0.97
    assert plainly < covered  # without the logit scale


def test_interval_of_paired_scores_is_wider_than_need_be():
    covered = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        shared = generator.normal(size=60)
        pair = (shared + generator.normal(size=60) + shift for shift in (0, 1))
        low, high = auc_interval(*(torch.tensor(s) for s in pair))
        covered += low <= 0.6915 <= high  # Phi(1 / 2)
    assert covered / 400 > 0.965


@pytest.mark.parametrize(
    ("clean", "adversarial", "expected"),
    [
        ([0.0] * 30, [1.0] * 20, (20 / (20 + 1.96**2), 1)),  # Wilson for 20 of 20
        ([1.0] * 30, [0.0] * 20, (0, 1.96**2 / (20 + 1.96**2))),
        ([0.0] * 30, [0.0] * 20, (0.2993, 0.7007)),  # Wilson for 10 of 20
        ([0.0], [1.0], (1 / (1 + 1.96**2), 1)),
        ([0.0, 2.0], [1.0], (0.0546, 0.9454)),
    ],
)
def test_interval_where_delong_has_nothing_to_say(clean, adversarial, expected):
    ends = auc_interval(torch.tensor(clean), torch.tensor(adversarial))
    assert ends == pytest.approx(expected, abs=1e-3)


@given(scores, scores, st.floats(0.5, 0.99))
def test_interval_holds_the_estimate_and_mirrors(clean, adversarial, level):
    one, other = torch.tensor(clean), torch.tensor(adversarial)
    low, high = auc_interval(one, other, level)
    assert 0 <= low <= auc(one, other) <= high <= 1
    assert low < high
    assert auc_interval(other, one, level) == pytest.approx((1 - high, 1 - low))


def test_perfect_separation_covers():
    """Areas so close to 1 that many samples are separated: the interval does not pretend."""
    runs = 400
    missed = 0
    for seed in range(runs):
        low, _ = auc_interval(*(torch.tensor(s) for s in normal_scores(seed, 15, 15, 5.5)))
        missed += low > 0.99886  # Phi(5.5 / sqrt(3.25))
    assert missed / runs < 0.05


def test_errors_of_curve_and_interval():
    good, empty = torch.tensor([0.1, 0.2]), torch.tensor([])
    for function in (roc, auc_interval):
        with pytest.raises(InputError, match="clean scores must be a vector with at least one"):
            function(empty, good)
        with pytest.raises(InputError, match=r"adversarial scores .* with 1 NaN"):
            function(good, torch.tensor([0.1, math.nan]))
        with pytest.raises(InputError, match=r"saw shape \(1, 2\)"):
            function(good[None], good)
    for level in (0, 1, 95):
        with pytest.raises(InputError, match="level must"):
            auc_interval(good, good, level)


def test_sign_larger_is_more_suspicious():
    """On a model that obeys the paper's assumptions, attacked points score above clean ones."""
    x, y = clean_samples(5)
    keep = y != TARGET
    detector = MixupDetector(LinearPlusG(), Pool(x, y), draws=10)
    assert detector.score(perturb(x[keep], 0.97)).min() > detector.score(x).max()


def test_is_a_module_with_gradients(trained, pool, parts):
    x = parts["test"].pixels[:5].requires_grad_()
    detector = MixupDetector(trained, pool, draws=3)
    (gradient,) = torch.autograd.grad(detector(x).sum(), x)
    assert bool((gradient.flatten(1).norm(dim=1) > 0).all())
    assert not detector.score(x.detach()).requires_grad


def test_errors(trained, pool, parts):
    detector = MixupDetector(trained, pool)
    with pytest.raises(InputError, match="call calibrate"):
        detector.detect(parts["test"].pixels)
    with pytest.raises(InputError, match="give at least 19"):
        detector.calibrate(parts["test"].pixels[:18])
    detector.calibrate(parts["test"].pixels[:19])
    with pytest.raises(InputError, match="must be positive"):
        detector.calibrate(parts["test"].pixels, false_positive_rate=0)
