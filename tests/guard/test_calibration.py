from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest

from mixup_inference import InputError
from mixup_inference.guard.calibration import alarms_by_class, calibrate, drift, rate_interval


def test_the_interval_covers_the_true_rate_as_often_as_it_says():
    """Scores uniform on [0, 1): the rate beyond a threshold t is 1 - t exactly."""
    generator, covered, low_side = torch.Generator().manual_seed(0), 0, 0
    for _ in range(2000):
        found = calibrate(torch.rand(119, generator=generator, dtype=torch.float64), 0.05)
        covered += found.low <= 1 - found.threshold <= found.high
        low_side += found.low > 1 - found.threshold
    low, high = binomtest(covered, 2000).proportion_ci(0.999)
    assert low <= 0.95 <= high
    assert 20 <= low_side <= 85  # both tails have 2.5%


def test_the_mean_rate_is_at_most_what_was_asked_for():
    generator = torch.Generator().manual_seed(1)
    rates = [1 - calibrate(torch.rand(50, generator=generator), 0.1).threshold for _ in range(2000)]
    assert 0.09 < sum(rates) / len(rates) < 0.1 + 0.003


def test_too_few_points_say_how_many_are_needed():
    with pytest.raises(InputError, match="give at least 99"):
        calibrate(torch.rand(98), 0.01)
    assert calibrate(torch.rand(99), 0.01).flagged == 0


def test_more_points_narrow_the_interval():
    widths = [rate_interval(n, n // 20) for n in (100, 1000, 10000)]
    widths = [high - low for low, high in widths]
    assert widths[0] > 2.5 * widths[1] > 6 * widths[2]


def test_alarms_of_each_class_are_clopper_and_pearsons():
    flagged, labels = torch.tensor([True, True, False, False, False]), torch.tensor([0, 0, 0, 1, 1])
    one, two, none = alarms_by_class(flagged, labels, ("a", "b", "c"))
    assert (one.flagged, one.points, two.flagged, two.points) == (2, 3, 0, 2)
    expected = binomtest(2, 3).proportion_ci(0.95)
    assert (one.low, one.high) == pytest.approx((expected.low, expected.high))
    assert (none.points, none.low, none.high) == (0, 0, 1)


def test_drift_is_reported_as_seldom_as_it_says_when_there_is_none():
    generator, surprised = torch.Generator().manual_seed(2), 0
    for _ in range(1500):
        found = calibrate(torch.rand(99, generator=generator), 0.1)
        new = torch.rand(60, generator=generator) > found.threshold
        surprised += not drift(found, new).fits
    assert surprised <= 25  # 1% of 1,500, and its spread


def test_drift_is_seen_on_both_sides():
    found = calibrate(torch.arange(999.0), 0.1)
    many, usual, none = (drift(found, torch.arange(300) < count) for count in (60, 30, 2))
    assert (many.fits, usual.fits, none.fits) == (False, True, False)
    assert usual.expected == pytest.approx(30)
    with pytest.raises(InputError, match="no images"):
        drift(found, torch.zeros(0, dtype=torch.bool))
