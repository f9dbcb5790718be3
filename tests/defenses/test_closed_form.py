"""Table 1, entry by entry, on a classifier that obeys the paper's assumptions exactly."""

from __future__ import annotations

import pytest
import torch

from mixup_inference import MixupDetector, MixupInference, Pool
from synthetic import CLASSES, TARGET, LinearPlusG, clean_samples, extra_part, perturb

PER_CLASS = 6
POOL_X, POOL_Y = clean_samples(PER_CLASS)
POOL = Pool(POOL_X, POOL_Y)
CLEAN, Y = clean_samples(2)
KEEP = Y != TARGET  # a perturbation towards the class that it is already in changes nothing
X0, Y = CLEAN[KEEP], Y[KEEP]
T = 0.97
ADVERSARIAL = perturb(X0, T)
F = LinearPlusG()
ROWS = torch.arange(len(Y))


class Enumerated(MixupInference):
    """Goes through all allowed images of the pool once, so that the average is E over p_s."""

    def __init__(self, *, labels, lam):
        count = PER_CLASS * (1 if labels == "predicted" else CLASSES - 1)
        super().__init__(F, POOL, labels=labels, lam=lam, draws=count)

    def partners(self, y_hat, draws):
        same = self.labels == "predicted"
        allowed = [torch.nonzero((y == POOL_Y) == same).flatten() for y in y_hat.tolist()]
        numbers = torch.stack([a[draws.k] for a in allowed])
        return torch.full_like(numbers, self.lam, dtype=torch.float64), numbers


def expected_g(lam, labels):
    """E[G(lam delta; x~0)] over the pool, from G's formula alone."""
    out = []
    for x0 in X0:
        allowed = POOL_X[(POOL_Y == TARGET) == (labels == "predicted")]
        mixed = lam * x0 + (1 - lam) * allowed
        out.append(extra_part(mixed, torch.full((len(allowed),), lam * T).double()).mean(0))
    return torch.stack(out)


def test_the_assumptions_hold():
    """Eq. 2: clean points are classified correctly, adversarial ones wrongly."""
    assert torch.equal(F(X0).argmax(1), Y)
    assert bool((F(ADVERSARIAL).argmax(1) == TARGET).all())
    lam, a, b = 0.3, POOL_X[:10], POOL_X[-10:]
    torch.testing.assert_close(
        F(lam * a + (1 - lam) * b).exp(), lam * F(a).exp() + (1 - lam) * F(b).exp()
    )  # Eq. 3


@pytest.mark.parametrize("lam", [0.25, 0.5, 0.8])
class TestTable1:
    def test_mi_pl_on_clean_inputs_changes_nothing(self, lam):
        p = Enumerated(labels="predicted", lam=lam).predict_proba(X0)
        torch.testing.assert_close(p[ROWS, Y], torch.ones(len(Y)).double())

    def test_mi_ol_on_clean_inputs_leaves_lam(self, lam):
        p = Enumerated(labels="other", lam=lam).predict_proba(X0)
        torch.testing.assert_close(p[ROWS, Y], torch.full((len(Y),), lam).double())

    def test_mi_pl_on_adversarial_inputs(self, lam):
        p = Enumerated(labels="predicted", lam=lam).predict_proba(ADVERSARIAL)
        g = expected_g(lam, "predicted")
        torch.testing.assert_close(p[ROWS, Y], lam + g[ROWS, Y])
        torch.testing.assert_close(p[:, TARGET], (1 - lam) + g[:, TARGET])

    def test_mi_ol_on_adversarial_inputs(self, lam):
        p = Enumerated(labels="other", lam=lam).predict_proba(ADVERSARIAL)
        g = expected_g(lam, "other")
        torch.testing.assert_close(p[ROWS, Y], lam + (1 - lam) / (CLASSES - 1) + g[ROWS, Y])
        torch.testing.assert_close(p[:, TARGET], g[:, TARGET])

    def test_before_mixup_inference(self, lam):
        p = F(ADVERSARIAL).exp()
        g = extra_part(X0, torch.full((len(Y),), T).double())
        torch.testing.assert_close(p[ROWS, Y], 1 + g[ROWS, Y])
        torch.testing.assert_close(p[:, TARGET], g[:, TARGET])

    def test_the_detection_gap_is_equation_14(self, lam):
        """E[score | z=1] - E[score | z=0] = E[G_yhat(delta; x0) - G_yhat(...)] - (1 - lam)."""
        detector = MixupDetector(F, POOL, lam=lam)
        detector.inference = Enumerated(labels="predicted", lam=lam)
        gap = detector.score(ADVERSARIAL) - detector.score(X0)
        g = extra_part(X0, torch.full((len(Y),), T).double())[:, TARGET]
        torch.testing.assert_close(gap, g - expected_g(lam, "predicted")[:, TARGET] - (1 - lam))


@pytest.mark.parametrize("labels", ["other", "predicted"])
def test_draws_converge_to_the_expectation_at_the_monte_carlo_rate(labels):
    exact = Enumerated(labels=labels, lam=0.4).predict_proba(ADVERSARIAL)
    assert exact.std(0).max() > 0  # G depends on where it acts

    def error(draws):
        x = ADVERSARIAL.repeat(40, 1, 1, 1)
        mi = MixupInference(F, POOL, labels=labels, lam=0.4, draws=draws)
        p = mi.predict_proba(x, index=torch.arange(len(x)))
        return float((p - exact.repeat(40, 1)).pow(2).mean().sqrt())

    few, many = error(10), error(1000)
    assert 8 < few / many < 12.5  # sqrt(1000 / 10) = 10


def test_lam_one_gives_f():
    torch.testing.assert_close(
        MixupInference(F, POOL, lam=1.0).predict_proba(ADVERSARIAL), F(ADVERSARIAL).exp()
    )
