"""Section 3.2 on classifiers of which everything is known, and on a trained one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from mixup_inference import InputError, MixupDetector, MixupInference, Pool, pgd
from mixup_inference.draws import Draws, make_key
from mixup_inference.theory import (
    Terms,
    analyze,
    detection_gap,
    detection_gap_of,
    improves_robustness,
    keeps_clean_predictions,
    linearity,
    ric_bounds,
    table_1,
)
from synthetic import CLASSES, TARGET, LinearPlusG, class_part, clean_samples, extra_part, perturb

KINDS = ["mi-pl", "mi-ol"]
LABELS = {"mi-pl": "predicted", "mi-ol": "other"}
PER_CLASS = 6
POOL_X, POOL_Y = clean_samples(PER_CLASS)
POOL = Pool(POOL_X, POOL_Y)
CLEAN, LABEL = clean_samples(2)
X0, Y = CLEAN[LABEL != TARGET], LABEL[LABEL != TARGET]
T = 0.97
ADVERSARIAL = perturb(X0, T)
F = LinearPlusG()


@pytest.fixture
def all_partners(monkeypatch):
    """Draws go through all allowed images of the pool once, so that averages are E over p_s."""

    def partners(self, y_hat, draws):
        same = self.labels == "predicted"
        allowed = [torch.nonzero((y == POOL_Y) == same).flatten() for y in y_hat.tolist()]
        numbers = torch.stack([a[draws.k] for a in allowed])
        return torch.full_like(numbers, self.lam, dtype=torch.float64), numbers

    monkeypatch.setattr(MixupInference, "partners", partners)


def enumerate_all(kind, lam, *, model=F, x_0=X0, size=T, y=Y):
    """``analyze`` with ``all_partners``."""
    draws = PER_CLASS * (1 if kind == "mi-pl" else CLASSES - 1)
    return analyze(model, POOL, x_0, perturb(x_0, size), y, kind=kind, lam=lam, draws=draws)


def exact_g(kind, lam, shrink):
    """E[G(shrink delta; x~0)] of each point over the pool, from G's formula alone."""
    allowed = POOL_X[(POOL_Y == TARGET) == (kind == "mi-pl")]
    t = torch.full((len(allowed),), shrink * T, dtype=torch.float64)
    return torch.stack([extra_part(lam * x + (1 - lam) * allowed, t).mean(0) for x in X0])


@pytest.mark.usefixtures("all_partners")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lam", [0.1, 0.5, 0.8])
class TestClosedForms:
    def test_table_1_is_what_a_model_that_obeys_the_assumptions_does(self, kind, lam):
        measured = enumerate_all(kind, lam)
        for side in (measured.clean, measured.adversarial):
            for name in ("y", "y_hat", "y_mi", "y_hat_mi", "delta_y", "delta_y_hat"):
                expected = getattr(side.theory, name)
                assert getattr(side, name).mean == pytest.approx(expected, abs=1e-12), name
        assert measured.detection_gap.mean == pytest.approx(
            measured.detection_gap_theory, abs=1e-12
        )
        assert measured.detection_gap_theory == pytest.approx(
            detection_gap(measured.clean.theory, measured.adversarial.theory), abs=1e-12
        )

    def test_g_and_both_mechanisms_are_those_of_the_formula(self, kind, lam):
        measured = enumerate_all(kind, lam)
        at_x0 = extra_part(X0, torch.full((len(Y),), T, dtype=torch.float64))
        at_mixed, shrunk = exact_g(kind, lam, 1.0), exact_g(kind, lam, lam)
        rows = torch.arange(len(Y))
        for part, k in ((measured.y, Y), (measured.y_hat, torch.full_like(Y, TARGET))):
            for name, table in {
                "at_x0": at_x0,
                "at_mixed": at_mixed,
                "at_mixed_shrunk": shrunk,
                "input_transfer": at_x0 - at_mixed,
                "perturbation_shrinkage": at_mixed - shrunk,
                "change": at_x0 - shrunk,
            }.items():
                values = table[rows, k]
                found = getattr(part, name)
                assert found.mean == pytest.approx(float(values.mean()), abs=1e-12)
                assert found.se == pytest.approx(float(values.std()) / len(Y) ** 0.5, abs=1e-12)
            assert abs(part.input_transfer.mean) > 1e-3
            assert abs(part.perturbation_shrinkage.mean) > 1e-3

    def test_the_forms_of_the_robustness_improving_condition_agree(self, kind, lam):
        measured = enumerate_all(kind, lam)
        assert measured.ric == measured.ric_on_g
        assert measured.ric.holds == improves_robustness(measured.adversarial.theory)
        assert measured.ric.total == measured.counts.used == len(Y)


@pytest.mark.usefixtures("all_partners")
class TestRobustnessImprovingCondition:
    """Each of its cases, by the choice of lam and of how strong the attack is."""

    def test_holds_for_both(self):
        for kind in KINDS:
            ric = enumerate_all(kind, 0.5).ric
            assert ric.holds
            assert ric.points == ric.total

    def test_mi_ol_can_hold_where_mi_pl_does_not(self):
        """G_yhat falls by a (1 - lam^3) under MI-PL, which must exceed 1 - lam."""
        assert not enumerate_all("mi-pl", 0.1).ric.holds
        assert enumerate_all("mi-ol", 0.1).ric.holds

    def test_can_fail_for_both(self):
        x_0 = X0.clone()
        x_0[..., CLASSES] = 0  # a weak push, just enough to fool F
        for kind in KINDS:
            ric = enumerate_all(kind, 0.05, x_0=x_0, size=0.88).ric
            assert (ric.holds, ric.points, ric.total) == (False, 0, len(Y))

    def test_counts_the_points_for_which_it_holds(self):
        """For MI-PL it is a (1 + lam + lam^2) > 1 in this model, were v the same everywhere."""
        x_0 = X0.clone()
        x_0[:3, ..., CLASSES], x_0[3:, ..., CLASSES] = 1, 0
        ric = enumerate_all("mi-pl", 0.2, x_0=x_0).ric
        assert ric.points == 3


class Unplaced(LinearPlusG):
    """A G whose y_hat component is t^2 wherever it acts (as long as H_yhat < 1)."""

    def forward(self, x):
        h, g = class_part(x), x.flatten(1)[:, -1:] ** 2
        q = torch.eye(CLASSES, dtype=x.dtype)[TARGET]
        rest = (1 - h[:, TARGET : TARGET + 1]).clamp(min=1e-12)
        return torch.log((h + g * (q - h) / rest).clamp(min=1e-300))


@pytest.mark.usefixtures("all_partners")
class TestDetectionGap:
    """MI-PL and MI-OL have the same gap exactly when E[G_yhat(lam delta; x~0)] is the same."""

    @pytest.mark.parametrize("lam", [0.2, 0.6])
    def test_is_equal_when_g_does_not_depend_on_what_is_mixed_in(self, lam):
        pl, ol = (enumerate_all(kind, lam, model=Unplaced()).detection_gap.mean for kind in KINDS)
        assert pl == pytest.approx(ol, abs=1e-12)
        assert pl == pytest.approx(T**2 * (1 - lam**2) - (1 - lam), abs=1e-12)

    def test_is_not_equal_in_general(self):
        """Mixed with clean images of y_hat, little is left to push towards y_hat: G is smaller."""
        pl, ol = (enumerate_all(kind, 0.6).detection_gap.mean for kind in KINDS)
        assert pl > ol + 0.05


numbers = st.floats(-1, 1, allow_nan=False)


@given(
    st.sampled_from(KINDS), st.floats(0, 1), st.integers(2, 100),
    st.builds(Terms, numbers, numbers, numbers, numbers),
)  # fmt: skip
def test_bounds_on_g_are_the_condition_on_f(kind, lam, classes, terms):
    bounds = ric_bounds(kind, lam=lam, classes=classes)
    margin_y = bounds.y - (terms.y - terms.y_mi)
    margin_y_hat = (terms.y_hat - terms.y_hat_mi) - bounds.y_hat
    assume(min(abs(margin_y), abs(margin_y_hat)) > 1e-9)  # but for rounding
    clean = table_1(kind, lam=lam, classes=classes)
    column = table_1(kind, lam=lam, classes=classes, terms=terms)
    assert (column.delta_y, -column.delta_y_hat) == pytest.approx(
        (margin_y, margin_y_hat), abs=1e-12
    )
    assert improves_robustness(column) == (margin_y > 0 and margin_y_hat > 0)
    gap = detection_gap_of(terms.y_hat - terms.y_hat_mi, lam=lam)
    assert detection_gap(clean, column) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_condition_of_mi_ol_is_strictly_looser(classes):
    """After Eq. 15: "strictly looser than Eq. 12"."""
    for lam in (0.01, 0.5, 0.99):
        pl, ol = (ric_bounds(kind, lam=lam, classes=classes) for kind in KINDS)
        assert ol.y > pl.y
        assert ol.y_hat < pl.y_hat


@pytest.mark.usefixtures("all_partners")
@pytest.mark.parametrize("lam", [0.05, 0.19, 0.21, 0.6])
def test_clean_points_keep_their_class_above_one_over_l(lam):
    mi = MixupInference(F, POOL, labels="other", lam=lam, draws=PER_CLASS * (CLASSES - 1))
    kept = mi.predict_proba(X0).argmax(1) == Y
    assert bool((kept == keeps_clean_predictions(lam, classes=CLASSES)).all())


ESTIMATES = {
    "gap": lambda a: a.detection_gap,
    "clean F_MI": lambda a: a.clean.y_mi,
    "Delta F_y": lambda a: a.adversarial.delta_y,
    "Delta F_yhat": lambda a: a.adversarial.delta_y_hat,
    "transfer": lambda a: a.y_hat.input_transfer,
    "shrinkage": lambda a: a.y.perturbation_shrinkage,
    "change": lambda a: a.y_hat.change,
}


class TestMonteCarlo:
    """One point many times over, so that all there is to err about is the draws."""

    def repeated(self, seed, count=60, draws=4, kind="mi-ol"):
        x = X0[:1].repeat(count, 1, 1, 1)
        adversarial = perturb(x, T)
        return analyze(
            F, POOL, x, adversarial, Y[:1].repeat(count),
            kind=kind, lam=0.4, draws=draws, seed=seed, batch_size=500,
        )  # fmt: skip

    @pytest.mark.parametrize("kind", KINDS)
    def test_agrees_with_the_expectation_within_its_standard_error(self, kind, request):
        drawn = self.repeated(1, count=400, draws=10, kind=kind)
        request.getfixturevalue("all_partners")
        twice = X0[:1].repeat(2, 1, 1, 1)
        exact = enumerate_all(kind, 0.4, x_0=twice, y=Y[:1].repeat(2))
        for name, pick in ESTIMATES.items():
            error = abs(pick(drawn).mean - pick(exact).mean)
            assert error <= 4 * pick(drawn).se + 1e-12, name
            assert pick(drawn).se < 0.01, name

    def test_the_standard_error_is_the_spread_over_seeds(self):
        runs = [self.repeated(seed) for seed in range(80)]
        for name, pick in ESTIMATES.items():
            if name == "clean F_MI":
                continue  # exactly lam, whatever is drawn
            means = torch.tensor([pick(run).mean for run in runs])
            claimed = torch.tensor([pick(run).se for run in runs]).pow(2).mean().sqrt()
            assert 0.75 < float(means.std() / claimed) < 1.3, name


@pytest.fixture(scope="module")
def attacked(trained, parts):
    test = parts["test"]
    return pgd(trained, test.pixels, test.labels, eps=0.15, step=0.03, index=test.index)


@pytest.mark.parametrize("kind", KINDS)
class TestOnATrainedNetwork:
    def run(self, trained, pool, parts, attacked, rows=slice(None), **options):
        test = parts["test"]
        settings = {"lam": 0.6, "draws": 5, "seed": 3, "index": test.index[rows]} | options
        return analyze(
            trained, pool, test.pixels[rows], attacked[rows], test.labels[rows], **settings
        )

    def test_measures_what_the_defence_and_the_detector_do(
        self, kind, trained, pool, parts, attacked, same_global_state
    ):
        test = parts["test"]
        found = self.run(trained, pool, parts, attacked, kind=kind)
        options = {"labels": LABELS[kind], "lam": 0.6, "draws": 5, "seed": 3}
        mi, detector = (make(trained, pool, **options) for make in (MixupInference, MixupDetector))
        with torch.no_grad():
            right = trained(test.pixels).argmax(1) == test.labels
            y_hat = trained(attacked).argmax(1)
        use = right & (y_hat != test.labels)
        counts = found.counts
        assert (counts.used, counts.clean_wrong) == (int(use.sum()), int((~right).sum()))
        assert counts.attack_failed == int((right & (y_hat == test.labels)).sum())
        assert min(counts.used, counts.clean_wrong, counts.attack_failed) > 0
        p = mi.predict_proba(attacked, index=test.index)[use].double()
        for estimate, labels in (
            (found.adversarial.y_mi, test.labels),
            (found.adversarial.y_hat_mi, y_hat),
        ):
            expected = p.gather(1, labels[use, None]).mean()
            assert estimate.mean == pytest.approx(float(expected), abs=1e-6)
        scores = [detector.score(x, index=test.index)[use] for x in (attacked, test.pixels)]
        gaps = (scores[0] - scores[1]).double()
        assert found.detection_gap.mean == pytest.approx(float(gaps.mean()), abs=1e-6)
        paired = float(gaps.std()) / len(gaps) ** 0.5
        assert found.detection_gap.se == pytest.approx(paired, abs=1e-6)
        assert found.ric.points == int(
            ((p.gather(1, test.labels[use, None])[:, 0] > _f(trained, attacked, test.labels)[use])
            & (scores[0] > 0)).sum()
        )  # fmt: skip

    def test_mechanisms_equal_the_plain_loop(self, kind, trained, pool, parts, attacked):
        test = parts["test"]
        found = self.run(trained, pool, parts, attacked, slice(0, 12), kind=kind, draws=3)
        mi = MixupInference(trained, pool, labels=LABELS[kind], lam=0.6, draws=3, seed=3)
        rows = []
        for x_0, x, y, i in zip(
            test.pixels[:12], attacked[:12], test.labels[:12], test.index[:12], strict=True
        ):
            f = lambda image: trained(image[None]).double().softmax(1)[0].detach()  # noqa: E731
            y_hat = f(x).argmax()
            if f(x_0).argmax() != y or y_hat == y:
                continue
            draws = Draws(make_key(3, "index", 0), i[None], torch.arange(3))
            _, drawn = mi.partners(y_hat[None], draws)
            transfer = shrinkage = 0
            for x_s in pool.pixels(drawn)[0]:
                base = 0.6 * x_0 + 0.4 * x_s
                g_moved = f(base + (x - x_0)) - f(base)
                g_shrunk = f(0.6 * x + 0.4 * x_s) - f(base)
                transfer = transfer + (f(x) - f(x_0) - g_moved) / 3
                shrinkage = shrinkage + (g_moved - g_shrunk) / 3
            rows.append((transfer[y], shrinkage[y], transfer[y_hat], shrinkage[y_hat]))
        assert len(rows) == found.counts.used >= 3
        expected = torch.tensor(rows).mean(0).tolist()
        ours = [
            *(found.y.input_transfer.mean, found.y.perturbation_shrinkage.mean),
            *(found.y_hat.input_transfer.mean, found.y_hat.perturbation_shrinkage.mean),
        ]
        assert ours == pytest.approx(expected, abs=1e-6)

    def test_batch_size_and_order_change_nothing(self, kind, trained, pool, parts, attacked):
        one = self.run(trained, pool, parts, attacked, slice(0, 40), kind=kind)
        backwards = torch.arange(39, -1, -1)
        for rows, batch_size in ((slice(0, 40), 1), (slice(0, 40), 7), (backwards, 1000)):
            other = self.run(trained, pool, parts, attacked, rows, kind=kind, batch_size=batch_size)
            assert flat(other) == pytest.approx(flat(one), abs=1e-6)
            assert other.counts == one.counts
        reseeded = self.run(trained, pool, parts, attacked, slice(0, 40), kind=kind, seed=4)
        assert reseeded.detection_gap != one.detection_gap

    def test_is_ready_for_json(self, kind, trained, pool, parts, attacked):
        found = self.run(trained, pool, parts, attacked, slice(0, 20), kind=kind)
        document = json.loads(json.dumps(asdict(found), allow_nan=False))
        assert document["kind"] == kind
        assert document["adversarial"]["theory"] == asdict(found.adversarial.theory)


def _f(model, x, labels):
    """F's component with each point's label."""
    with torch.no_grad():
        return model(x).double().softmax(1).gather(1, labels[:, None])[:, 0]


def flat(analysis):
    """All numbers of an analysis that are not counts."""
    plain = asdict(replace(analysis, counts=None, ric=None, ric_on_g=None))
    found = []

    def collect(value):
        for part in value.values() if isinstance(value, dict) else [value]:
            collect(part) if isinstance(part, dict) else found.append(part)

    collect(plain)
    return [value for value in found if isinstance(value, float)]


def test_points_that_violate_equation_2_are_counted_and_left_out():
    x_adv, y = ADVERSARIAL.clone(), Y.clone()
    x_adv[1] = X0[1]  # the attack failed
    y[4] = (y[4] + 1) % CLASSES  # wrong when clean
    y[5], x_adv[5] = TARGET, X0[5]  # both
    options = {"kind": "mi-ol", "lam": 0.5, "draws": 3}
    found = analyze(F, POOL, X0, x_adv, y, **options)
    assert asdict(found.counts) == {"used": len(Y) - 3, "clean_wrong": 2, "attack_failed": 1}
    keep = torch.tensor([i for i in range(len(Y)) if i not in (1, 4, 5)])
    alone = analyze(F, POOL, X0[keep], x_adv[keep], y[keep], index=keep, **options)
    assert flat(found) == pytest.approx(flat(alone), abs=1e-12)


def test_runs_in_eval_mode_and_leaves_the_mode_as_it_was():
    model = nn.Sequential(F, nn.Dropout()).train()
    options = {"kind": "mi-ol", "lam": 0.5, "draws": 3}
    assert analyze(model, POOL, X0, ADVERSARIAL, Y, **options) == analyze(
        F, POOL, X0, ADVERSARIAL, Y, **options
    )
    assert model[1].training


def test_errors_of_analyze():
    def run(x_clean=X0, x_adv=ADVERSARIAL, y=Y, model=F, **options):
        return analyze(model, POOL, x_clean, x_adv, y, **({"kind": "mi-ol", "lam": 0.5} | options))

    with pytest.raises(InputError, match=r"0 of 8 points satisfy Eq. 2.* on 8 the attack failed"):
        run(x_adv=X0)
    with pytest.raises(InputError, match=r"1 of 1 points satisfy .* a standard error needs two"):
        run(X0[:1], ADVERSARIAL[:1], Y[:1])
    with pytest.raises(InputError, match="same points before and after"):
        run(x_adv=ADVERSARIAL[:3])
    with pytest.raises(InputError, match="did you mean 'mi-ol'"):
        run(kind="mi-o")
    with pytest.raises(InputError, match=r"lam must be in \[0, 1\]"):
        run(lam=1.5)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        run(batch_size=0)
    with pytest.raises(InputError, match="y has 3 labels for 8 images"):
        run(y=Y[:3])
    with pytest.raises(InputError, match="they must be the same to be mixed"):
        run(X0[..., :3], ADVERSARIAL[..., :3])
    with pytest.raises(InputError, match="contain NaN"):
        run(model=nn.Sequential(F, _Nan()))
    with pytest.raises(InputError, match="returns probabilities"):
        run(model=nn.Sequential(F, nn.Softmax(1)))
    with pytest.raises(InputError, match="classes must be at least 2"):
        table_1("mi-ol", lam=0.5, classes=1)


class _Nan(nn.Module):
    def forward(self, x):
        return x * float("nan")


class Sharpened(nn.Module):
    """F_k proportional to H_k^power: linear for 1, a step at 1/2 for a large power."""

    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, x):
        return self.power * torch.log(class_part(x).clamp(min=1e-300))


class TestLinearity:
    def test_is_zero_for_a_linear_model(self):
        for model in (F, Sharpened(1)):
            found = linearity(model, POOL_X, pairs=100)
            assert found.overall.mean < 1e-12
            assert max(point.mean for point in found.curve) < 1e-12
        assert found.lams == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

    @pytest.mark.parametrize("power", [2, 60])
    def test_equals_the_closed_form_of_a_model_with_a_bend(self, power):
        """Between two classes it is |lam^p / (lam^p + (1 - lam)^p) - lam|; within one it is 0."""
        lams = (0.1, 0.3, 0.5, 0.8)
        found = linearity(Sharpened(power), POOL_X, lams=lams, pairs=1000)
        bends = [abs(s**power / (s**power + (1 - s) ** power) - s) for s in lams]
        apart = found.curve[0].mean / bends[0]  # the share of pairs from two classes
        assert [point.mean for point in found.curve] == pytest.approx(
            [apart * bend for bend in bends], abs=1e-12
        )
        share = 1 - (PER_CLASS - 1) / (len(POOL_X) - 1)  # without an image paired with itself
        error = (share * (1 - share) / 1000) ** 0.5
        assert abs(apart - share) < 4 * error
        spread = (apart * (1 - apart) / 999) ** 0.5
        assert found.curve[1].se == pytest.approx(bends[1] * spread, rel=1e-6)
        assert found.overall.mean == pytest.approx(apart * sum(bends) / 4)
        assert found.overall.se == pytest.approx(spread * sum(bends) / 4, rel=1e-6)

    def test_pairs_are_two_different_images(self):
        two = POOL_X[[0, -1]]
        found = linearity(Sharpened(2000), two, lams=(0.2, 0.6), pairs=40)
        assert [point.mean for point in found.curve] == pytest.approx([0.2, 0.4])
        assert found.overall.se == pytest.approx(0, abs=1e-12)

    def test_is_a_function_of_the_seed_alone(self, trained, parts, same_global_state):
        test = parts["test"]
        one = linearity(trained, test.pixels, pairs=60, lams=(0.3, 0.5))
        assert 0.01 < one.overall.mean < 0.9
        for images, batch_size in ((test.images, 100), (test.pixels, 7)):  # uint8 and float
            other = linearity(trained, images, pairs=60, lams=(0.3, 0.5), batch_size=batch_size)
            assert other.overall.mean == pytest.approx(one.overall.mean, abs=1e-6)
        assert linearity(trained, test.pixels, pairs=60, lams=(0.3, 0.5), seed=1) != one
        json.dumps(asdict(one), allow_nan=False)

    def test_errors(self):
        with pytest.raises(InputError, match=r"at least two images and one lam; saw 1 image"):
            linearity(F, POOL_X[:1])
        with pytest.raises(InputError, match="0 lams"):
            linearity(F, POOL_X, lams=())
        with pytest.raises(InputError, match="pairs must be at least 2"):
            linearity(F, POOL_X, pairs=1)
        with pytest.raises(InputError, match=r"a lam must be in \[0, 1\]"):
            linearity(F, POOL_X, lams=(0.5, 1.2))
