from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mixup_inference import InputError, MixupDetector, MixupInference, Pool, pgd
from mixup_inference.detection import auc
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
def test_auc_equals_scikit_learn(clean, adversarial):
    truth = [0] * len(clean) + [1] * len(adversarial)
    ours = auc(torch.tensor(clean), torch.tensor(adversarial))
    assert ours == pytest.approx(roc_auc_score(truth, clean + adversarial))


def test_auc_of_real_scores_equals_scikit_learn(trained, pool, parts):
    test = parts["test"]
    attacked = pgd(trained, test.pixels, test.labels, eps=0.2, step=0.05, targeted=True)
    detector = MixupDetector(trained, pool, labels="other", lam=0.7, draws=20)
    clean, wrong = (detector.score(x, index=test.index) for x in (test.pixels, attacked))
    theirs = roc_auc_score([0] * 200 + [1] * 200, torch.cat([clean, wrong]).numpy())
    assert auc(clean, wrong) == pytest.approx(theirs)


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
