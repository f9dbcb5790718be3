from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from mixup_inference import InputError, MixupDetector, MixupInference, Pool, pgd
from mixup_inference.defenses.filters import median_filter, non_local_means, quantize
from mixup_inference.detection import SCORES, Detector, ScoreEntry
from mixup_inference.detection.scores import dissent, energy, feature_squeezing, label_histogram
from mixup_inference.metrics.roc import auc, auc_interval, roc
from mixup_inference.models.call import count_passes
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


# Any score


def test_energy_is_minus_the_log_of_the_sum_of_exponentials():
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 500.0, 3.0]])
    by_hand = [-math.log(math.e + math.e**2 + math.e**3), -math.log(3), -500.0]
    torch.testing.assert_close(energy(logits), torch.tensor(by_hand, dtype=torch.float64))
    cold = -0.5 * torch.logsumexp(logits.double() / 0.5, dim=1)
    torch.testing.assert_close(energy(logits, temperature=0.5), cold)
    shifted = energy(logits + torch.tensor([[2.0], [0.0], [-3.0]])) - energy(logits)
    torch.testing.assert_close(shifted, torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64))


def test_energy_of_log_probabilities_is_nothing(trained, pool, parts):
    x = parts["test"].pixels[:7]
    plain = Detector("energy", trained)
    torch.testing.assert_close(plain.score(x), -torch.logsumexp(trained(x), 1).double().detach())
    assert float(plain.score(x).std()) > 0.1
    defended = Detector("energy", MixupInference(trained, pool, draws=3))
    assert float(defended.score(x).abs().max()) < 1e-5


def test_feature_squeezing_by_hand(trained, parts):
    one = torch.tensor([[0.7, 0.2, 0.1]]).log()
    views = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]]).log()
    assert float(feature_squeezing(one, views)) == pytest.approx(1.2)
    x = parts["test"].pixels[:9]
    with torch.no_grad():
        p, bits, median = (trained(v).softmax(1) for v in (x, quantize(x, 1), median_filter(x, 2)))
    expected = torch.maximum((p - bits).abs().sum(1), (p - median).abs().sum(1))
    torch.testing.assert_close(Detector("feature squeezing", trained).score(x).float(), expected)


def test_colour_is_squeezed_in_three_ways():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(75, 4))
    x = torch.rand(6, 3, 5, 5)
    p = model(x).softmax(1)
    ways = (quantize(x, 31), median_filter(x, 2), non_local_means(x, 13, 3, 2 / 255))
    expected = torch.stack([(p - model(way).softmax(1)).abs().sum(1) for way in ways]).amax(0)
    with count_passes(model) as passes:
        found = Detector("feature squeezing", model).score(x)
    torch.testing.assert_close(found.float(), expected.detach())
    assert passes.forward == 6 * (1 + 3)


def test_the_label_histogram_by_hand():
    votes = torch.tensor([[0, 0, 1, 2], [1, 1, 1, 1]])
    log_p = torch.nn.functional.one_hot(votes, 3).float().mul(5).log_softmax(2)
    found = label_histogram(log_p[:, 0], log_p)
    assert found.tolist() == pytest.approx([1.5 * math.log(2), 0.0])
    counted = [np.bincount(row, minlength=3) / 4 for row in votes.numpy()]
    assert found.tolist() == pytest.approx([entropy(p) for p in counted])


def test_dissent_by_hand():
    votes = torch.tensor([[0, 0, 1, 2], [1, 1, 1, 1]])
    log_p = torch.nn.functional.one_hot(votes, 3).float().mul(5).log_softmax(2)
    assert dissent(log_p[:, 0], log_p).tolist() == [0.5, 0.0]
    assert dissent(log_p[:, 3], log_p).tolist() == [0.75, 0.0]


def test_counted_scores_have_the_gradient_of_the_mean_prediction():
    log_p = torch.randn(3, 5, 4).log_softmax(2).requires_grad_()
    y_hat = torch.randn(3, 4)
    p = log_p.exp().mean(1)
    for score, smooth in (
        (dissent, 1 - p.gather(1, y_hat.argmax(1, keepdim=True))),
        (label_histogram, -(p * p.log())),
    ):
        found, expected = (
            torch.autograd.grad(value.sum(), log_p, retain_graph=True)[0]
            for value in (score(y_hat, log_p), smooth)
        )
        torch.testing.assert_close(found, expected)


def test_scores_of_a_very_sure_model_have_finite_gradients():
    logits = torch.tensor([[0.0, -10.0, -2000.0]]).repeat(2, 1).requires_grad_()
    log_p = logits.log_softmax(1)
    for value in (SCORES["entropy"].function(log_p), label_histogram(log_p, log_p[:, None])):
        (found,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert bool(found.isfinite().all())
        assert bool(found[:, 1].gt(0).all())  # a likelier second class raises the entropy


def test_the_label_histogram_asks_the_draws_of_mixup_inference(trained, pool, parts):
    test = parts["test"]
    x, index = test.pixels[:20], test.index[:20]
    detector = Detector("label histogram", trained, pool, lam=0.6, draws=9, seed=4)
    mi = MixupInference(trained, pool, labels="other", lam=0.6, draws=9, seed=4)
    votes = mi.draw(x, 9, index=index, stream="s").argmax(2)
    expected = [entropy(np.bincount(row, minlength=10) / 9) for row in votes.numpy()]
    assert detector.score(x, index=index, stream="s").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_makes_a_detector(trained, pool, parts, name):
    calibration, test = parts["calibration"], parts["test"]
    detector = Detector(name, trained, pool, lam=0.6, draws=6)
    assert detector.model is trained
    assert detector.is_random == (SCORES[name].defense is not None)
    with pytest.raises(InputError, match="call calibrate"):
        detector.detect(test.pixels)
    threshold = detector.calibrate(calibration.pixels, index=calibration.index)
    scores = detector.score(test.pixels, index=test.index)
    flagged = detector.detect(test.pixels, index=test.index)
    assert torch.equal(flagged, scores > threshold)
    assert float(flagged.double().mean()) <= 0.05 + 4 * (2 * 0.05 * 0.95 / 200) ** 0.5
    parted = [detector.score(test.pixels[r], index=test.index[r]) for r in (slice(3), slice(3, 9))]
    torch.testing.assert_close(torch.cat(parted), scores[:9])
    again = Detector(name, trained, pool, lam=0.6, draws=6, threshold=threshold)
    assert torch.equal(again.detect(test.pixels, index=test.index), flagged)
    x = test.pixels[:6].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(detector(x, index=test.index[:6]).sum(), x)
    assert bool((gradient.flatten(1).norm(dim=1) > 0).any())
    log_p, found = detector.examine(test.pixels[:6], index=test.index[:6])
    torch.testing.assert_close(log_p, trained(test.pixels[:6]).log_softmax(1).detach())
    torch.testing.assert_close(found, scores[:6])


def test_mi_pl_by_name_is_the_mixup_detector(trained, pool, parts):
    test = parts["test"]
    for name, labels in (("MI-PL", "predicted"), ("MI-OL", "other")):
        one = Detector(name, trained, pool, lam=0.4, draws=5, seed=2, threshold=0.1)
        other = MixupDetector(trained, pool, labels=labels, lam=0.4, draws=5, seed=2, threshold=0.1)
        for call in ("score", "detect"):
            values = (getattr(d, call)(test.pixels, index=test.index) for d in (one, other))
            assert torch.equal(*values)


def test_a_score_of_ones_own(trained, parts):
    own = ScoreEntry("brightness", lambda log_p, views: views[:, 0, 0], views=lambda x: x[:, None])
    x = parts["test"].pixels[:5]
    expected = trained(x).log_softmax(1)[:, 0]
    torch.testing.assert_close(Detector(own, trained).score(x), expected.detach())


@pytest.mark.parametrize(
    "fields",
    [{"draws": True}, {"defense": "mi-ol", "logits": True}, {"views": len, "logits": True}],
)
def test_what_an_entry_refuses(fields):
    with pytest.raises(InputError, match="the score 'odd'"):
        ScoreEntry("odd", len, **fields)


def test_what_a_detector_refuses(trained, parts):
    with pytest.raises(TypeError, match="did you mean 'draws'"):
        Detector("energy", trained, drows=3)
    with pytest.raises(InputError, match="did you mean 'energy'"):
        Detector("energi", trained)
    with pytest.raises(InputError, match="did you mean 'MI-PL'"):
        Detector("mi-pl", trained)
    with pytest.raises(InputError, match="a name or a ScoreEntry"):
        Detector(trained, "energy")
    with pytest.raises(InputError, match="pool"):
        Detector("MI-PL", trained)
    with pytest.raises(InputError, match="threshold must be"):
        Detector("energy", trained, threshold="high")
    soft = torch.nn.Sequential(trained, torch.nn.Softmax(dim=1))
    with pytest.raises(InputError, match="probabilities"):
        Detector("energy", soft).score(parts["test"].pixels[:4])


def test_errors(trained, pool, parts):
    detector = MixupDetector(trained, pool)
    with pytest.raises(InputError, match="call calibrate"):
        detector.detect(parts["test"].pixels)
    with pytest.raises(InputError, match="give at least 19"):
        detector.calibrate(parts["test"].pixels[:18])
    detector.calibrate(parts["test"].pixels[:19])
    with pytest.raises(InputError, match="must be positive"):
        detector.calibrate(parts["test"].pixels, false_positive_rate=0)
