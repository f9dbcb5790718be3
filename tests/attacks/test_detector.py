from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixup_inference import InputError, Pool, pgd
from mixup_inference.attacks import eot_pgd, freeze, judge, random_targets, run_attack
from mixup_inference.attacks.detector_aware import Method, detector_aware, without_conflict
from mixup_inference.attacks.threat_model import ThreatModel, length
from mixup_inference.defenses import CombinedInference, Defense, MixupInference
from mixup_inference.detection import SCORES, Detector, MixupDetector, ScoreEntry
from mixup_inference.models.call import logits_of

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
MODEL[3].weight.data *= 10  # sure enough to be worth attacking
X = torch.rand(9, 1, 6, 6)
Y = torch.arange(9) % 3
POOL = Pool(torch.rand(12, 1, 6, 6), torch.arange(12) % 3)
SMALL = {"eps": 0.2, "steps": 4, "draws": 3}
METHODS = get_args(Method)


module = importlib.import_module("mixup_inference.attacks.detector_aware")


def tiny(threshold=0.05, **settings):
    return MixupDetector(MODEL, POOL, draws=7, threshold=threshold, **settings)


def says(model, x):
    with torch.no_grad():
        return logits_of(model, x).argmax(1)


@pytest.fixture(scope="module")
def points(parts):
    return parts["test"].pixels[:40], parts["test"].labels[:40]


@pytest.fixture(scope="module")
def detector(trained, pool, parts):
    out = MixupDetector(trained, pool, lam=0.3, draws=20)
    out.calibrate(parts["calibration"].pixels, false_positive_rate=0.2)
    return out


@pytest.mark.parametrize("method", METHODS)
def test_beats_the_plain_attack_at_the_calibrated_threshold(detector, points, method):
    x, y = points
    plain = pgd(detector.model, x, y, eps=0.3, step=0.075, steps=15)
    assert float((says(detector.model, plain) != y).double().mean()) > 0.95  # but flagged:
    before = float(judge(detector, plain, y).double().mean())
    result = detector_aware(detector, x, y, eps=0.3, steps=15, draws=5, method=method)
    assert before < 0.6
    assert float(result.success.mean()) > 0.9
    assert float(result.trace[-1]) > float(result.trace[0])


@pytest.mark.parametrize("convention", ["paper", "official"])
def test_fooled_is_wrong_and_not_flagged_on_fresh_draws(convention):
    detector, index = tiny(-0.05, convention=convention), torch.arange(9) + 50
    result = detector_aware(detector, X, Y, index=index, repeats=4, **SMALL)
    wrong = says(MODEL, result.examples) != Y
    flagged = [
        detector.detect(result.examples, index=index, stream=f"judge {repeat}")
        for repeat in range(4)
    ]
    assert torch.equal(result.fooled, wrong[:, None] & ~torch.stack(flagged, dim=1))
    assert 0 < float(result.success.mean()) < 1


def test_the_loss_is_the_smaller_distance_on_draws_of_its_own():
    result = detector_aware(tiny(-0.02), X, Y, seed=3, **SMALL)
    few = MixupDetector(MODEL, POOL, draws=3)
    gap = few.score(result.examples, index=torch.arange(9), stream="('attack', 3, 'last gap')")
    p = MODEL(result.examples).softmax(1)
    right = p.gather(1, Y[:, None])[:, 0]
    lead = p.scatter(1, Y[:, None], 0).amax(1) - right
    torch.testing.assert_close(result.loss, torch.minimum(lead, -0.02 - gap).detach())
    assert abs(float(result.trace[-1]) - float(result.loss.mean())) < 1e-6


def test_until_f_is_wrong_the_selective_path_is_that_of_pgd(detector, points):
    """So F is wrong in the end exactly where any iterate of plain PGD has it wrong."""
    x, y = points
    model, settings = detector.model, {"eps": 0.1, "step": 0.025, "steps": 10, "seed": 2}
    plain = pgd(model, x, y, snapshots=range(11), **settings)
    once = torch.stack([says(model, image) != y for image in plain.values()]).any(0)
    result = detector_aware(detector, x, y, draws=2, **settings)
    assert 0.2 < float(once.double().mean()) < 0.95
    assert torch.equal(says(model, result.examples) != y, once)


def watch_queries(monkeypatch):
    """A list that fills with the images at which the attack queries the detector."""
    looks, look = [], module._query

    def spy(batch, image, *rest):
        looks.append(image.detach())
        return look(batch, image, *rest)

    monkeypatch.setattr(module, "_query", spy)
    return looks


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", METHODS)
def test_one_step_goes_where_the_method_says(monkeypatch, method, norm):
    looks = watch_queries(monkeypatch)
    settings = {"eps": 0.5, "step": 0.05, "steps": 1, "draws": 3, "norm": norm}
    detector_aware(tiny(), X, Y, method=method, weight=3.0, **settings)
    start = looks[0].requires_grad_()
    gap = MixupDetector(MODEL, POOL, draws=3).score(
        start, index=torch.arange(9), stream="('attack', 0, 'gap', 0)"
    )
    loss = functional.cross_entropy(MODEL(start), Y, reduction="none")
    (up,) = torch.autograd.grad(loss.sum(), start)
    (down,) = torch.autograd.grad(-gap.sum(), start)
    wrong = MODEL(start).argmax(1) != Y
    assert 0 < int(wrong.sum()) < 9
    expected = []
    for point in range(9):
        one, other = up[point], down[point]
        if method == "lagrangian":
            expected.append(one + 3 * other)
            continue
        if wrong[point]:
            one, other = other, one
        dot = float((one * other).sum())
        conflict = method == "orthogonal" and dot < 0
        expected.append(one - dot / float((other**2).sum()) * other if conflict else one)
    ball = ThreatModel(norm, 0.5)
    after = ball.project(X, ball.step(start.detach(), torch.stack(expected), 0.05))
    torch.testing.assert_close(looks[1], after)


def test_of_the_iterates_that_f_has_wrong_the_one_with_the_lowest_gap_is_kept(monkeypatch):
    seen = []
    look = module._query

    def spy(batch, image, *rest):
        log_p, gap = look(batch, image, *rest)
        seen.append((image.detach(), log_p.detach()[:, 0].exp(), gap.detach()))
        return log_p, gap

    monkeypatch.setattr(module, "_query", spy)
    result = detector_aware(tiny(), X, Y, **SMALL)
    kept, stubborn = [], 0
    for point in range(9):
        wrong, right = [], []
        for image, p, gap in seen[:-1]:  # the last look is for the loss
            if int(p[point].argmax()) == Y[point]:
                others = p[point].clone().index_fill_(0, Y[point], 0).max()
                right.append((float(p[point, Y[point]] - others), image[point]))
            else:
                wrong.append((float(gap[point]), image[point]))
        kept.append(min(wrong or right, key=lambda pair: pair[0])[1])
        stubborn += not wrong
    assert torch.equal(result.examples, torch.stack(kept))
    assert 0 < stubborn < 5


@pytest.mark.parametrize(
    ("method", "back"), [("selective", 4), ("orthogonal", 5), ("lagrangian", 4)]
)
def test_counts_are_exact(method, back):
    """F(x) and K = 3 mixes at each of 4 steps, then at the last iterate, then for the loss."""
    result = detector_aware(tiny(), X, Y, method=method, batch_size=7, **SMALL)
    assert result.forward == 9 * (1 + 3) * (4 + 2)
    assert result.backward == 9 * back * 4


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("targeted", [False, True])
def test_stays_in_the_ball_and_in_range(norm, method, targeted):
    result = detector_aware(tiny(), X, Y, norm=norm, method=method, targeted=targeted, **SMALL)
    size = result.linf if norm == "linf" else result.l2
    assert float(size.max()) <= 0.2 + 1e-6
    torch.testing.assert_close(result.l2, length(result.examples - X))
    assert 0 <= float(result.examples.min()) <= float(result.examples.max()) <= 1
    assert result.trace.shape == (5,)


@pytest.mark.parametrize("make", [tiny, lambda: CombinedInference(MODEL, POOL, draws=7)])
@pytest.mark.usefixtures("same_global_state")
def test_each_point_is_attacked_on_its_own(make):
    index, rows = torch.arange(9) + 30, torch.tensor([4, 0, 8, 1, 7, 2, 6, 3, 5])
    MODEL.train()
    whole = detector_aware(make(), X, Y, index=index, **SMALL)
    again = detector_aware(make(), X, Y, index=index, **SMALL)
    parts = detector_aware(make(), X[rows], Y[rows], index=index[rows], batch_size=7, **SMALL)
    other = detector_aware(make(), X, Y, index=index, seed=1, **SMALL)
    assert torch.equal(whole.examples, again.examples)
    torch.testing.assert_close(parts.examples, whole.examples[rows])
    torch.testing.assert_close(parts.loss, whole.loss[rows])
    assert torch.equal(parts.fooled, whole.fooled[rows])
    assert not torch.equal(whole.examples, other.examples)
    assert MODEL.training
    assert all(weight.grad is None for weight in MODEL.parameters())


@pytest.mark.parametrize("make", [tiny, lambda: CombinedInference(MODEL, POOL, draws=7)])
def test_draws_are_fresh_and_never_those_of_the_judge(monkeypatch, make):
    seen = []
    stream = Defense._stream

    def spy(self, *args):
        name, index, k = stream(self, *args)
        seen.append((id(self), *name))
        return name, index, k

    monkeypatch.setattr(Defense, "_stream", spy)
    detector_aware(make(), X, Y, repeats=2, **SMALL)
    attacks = ["attack" in name for *_, name in seen]
    judged = attacks.index(False)
    assert not any(attacks[judged:])
    assert {name for *_, name in seen[judged:]} == {"judge 0", "judge 1"}
    steps = [names for names in seen if "'gap'" in names[-1] or "'step'" in names[-1]]
    assert len(steps) == len(set(steps)) >= 4 + 1


def test_targets(detector, points):
    x, y = points
    result = detector_aware(detector, x, y, eps=0.4, steps=15, draws=2, targeted=True)
    reached = says(detector.model, result.examples) == random_targets(y, 10)
    assert float(reached.double().mean()) > 0.7


def test_margin_asks_for_a_surer_mistake(detector, points):
    x, y = points
    result = detector_aware(detector, x, y, eps=0.4, steps=15, draws=2, margin=0.5)
    p = logits_of(detector.model, result.examples).softmax(1)
    lead = p.scatter(1, y[:, None], 0).amax(1) - p.gather(1, y[:, None])[:, 0]
    assert float((lead > 0.5).double().mean()) > 0.9


def test_nowhere_to_go():
    result = detector_aware(tiny(), X, says(MODEL, X), **SMALL | {"eps": 0})
    assert torch.equal(result.examples, X)
    assert bool((result.loss < 0).all())
    assert not bool(result.fooled.any())


def test_directions_without_conflict():
    one, other = torch.randn(2, 50, 1, 3, 3, dtype=torch.float64)
    dots = (one * other).flatten(1).sum(1)
    out = without_conflict(one, other)
    after = (out * other).flatten(1).sum(1)
    torch.testing.assert_close(after, dots.clamp(min=0))
    assert torch.equal(out[dots >= 0], one[dots >= 0])
    assert bool(((out * one).flatten(1).sum(1) >= 0).all())


@pytest.mark.parametrize(
    ("convention", "threshold", "eps", "gain"),
    [
        ("paper", -0.1, 0.15, 0.0),
        ("paper", -1.0, 0.15, -0.05),  # all are detected: MI-OL, which EOT-PGD attacks as well
        ("official", 0.05, 0.1, 0.15),  # through MI-PL, EOT does not see what a new y_hat does
    ],
)
def test_combined_is_attacked_at_least_as_well_as_by_eot(
    trained, pool, points, convention, threshold, eps, gain
):
    x, y = points
    combined = CombinedInference(
        trained, pool, threshold=threshold, convention=convention, draws=15, lam_defend=0.5
    )
    settings = {"eps": eps, "steps": 12, "draws": 5}
    eot = float(eot_pgd(combined, x, y, **settings).success.mean())
    result = detector_aware(combined, x, y, **settings)
    assert 0.2 < eot < 0.97
    assert float(result.success.mean()) >= eot + gain
    assert torch.equal(result.fooled, judge(combined, result.examples, y))


def test_combined_chooses_by_its_own_answers_on_draws_of_their_own(monkeypatch):
    """With a threshold that nothing exceeds only F matters, with one that all exceed only MI-OL."""
    for threshold, sure in ((1.0, MODEL), (-1.0, None)):
        combined = CombinedInference(MODEL, POOL, draws=7, threshold=threshold)
        result = detector_aware(combined, X, Y, **SMALL)
        if sure is not None:
            wrong = says(sure, result.examples) != Y
            assert torch.equal(result.fooled, wrong[:, None].expand(9, 5))
        else:
            mi = eot_pgd(combined.defender, X, Y, **SMALL)
            hit = judge(combined, mi.examples, Y, stream=repr(("attack", 0, "choose"))).sum(1)
            own = judge(combined, result.examples, Y, stream=repr(("attack", 0, "choose"))).sum(1)
            assert bool((own >= hit).all())


def test_combined_counts_are_exact():
    """Nothing is detected, so that an answer costs one pass of F and N of MI-PL."""
    combined = CombinedInference(MODEL, POOL, draws=7, threshold=1.0)
    result = detector_aware(combined, X, Y, **SMALL)
    hidden, seen, choosing, losses = 4 * (4 + 2), 4 * (4 + 1), 2 * 5 * (1 + 7), 4 * 4
    assert result.forward == 9 * (hidden + seen + choosing + losses)
    assert result.backward == 9 * (4 * 4 + 3 * 4)  # MI-OL looks at y_hat without a gradient


def test_frozen_combined_is_attacked_on_its_own_draws(trained, pool, points):
    x, y = points[0][:20], points[1][:20]
    combined = freeze(CombinedInference(trained, pool, threshold=0.0, draws=4))
    settings = {"eps": 0.15, "steps": 12}
    result = detector_aware(combined, x, y, **settings)
    assert result.fooled.shape == (20, 1)
    eot = eot_pgd(combined, x, y, **settings)
    assert float(result.success.mean()) >= float(eot.success.mean())


def test_the_gap_of_a_frozen_defence_is_the_one_that_decides_its_answer():
    combined = CombinedInference(MODEL, POOL, draws=4).frozen()
    victim = SimpleNamespace(module=combined)
    batch = SimpleNamespace(model=victim, seed=0, index=torch.arange(9) + 4, y=Y, prepared=combined)
    log_p, gap = module._query(batch, X, 99)
    ranked = gap.detach().sort().values
    for count in range(1, 9):  # so many stay under the threshold, and keep F's answer
        combined.threshold = float(ranked[count - 1] + ranked[count]) / 2
        kept = (combined(X) - log_p[:, 0]).abs().amax(1) < 1e-6
        assert torch.equal(kept, gap <= combined.threshold)
        assert int(kept.sum()) == count


# Any score


@pytest.fixture(scope="module")
def detectors(trained, pool, parts):
    """One for each score, at a false-positive rate of 20%."""
    out = {name: Detector(name, trained, pool, draws=10) for name in SCORES}
    for one in out.values():
        one.calibrate(parts["calibration"].pixels, false_positive_rate=0.2)
    return out


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_evaded(detectors, points, name):
    detector, (x, y) = detectors[name], points
    plain = pgd(detector.model, x, y, eps=0.3, step=0.075, steps=15)
    before = float(judge(detector, plain, y).double().mean())
    result = run_attack(
        "detector-aware", detector, x, y, settings={"steps": 25, "draws": 5}, eps=0.3
    )
    assert float(result.success.mean()) > max(0.9, before)
    assert result.fooled.shape == (40, 5 if detector.is_random else 1)
    wrong = says(detector.model, result.examples) != y
    flagged = detector.detect(result.examples, index=torch.arange(40), stream="judge 0")
    assert torch.equal(result.fooled[:, 0], wrong & ~flagged)


@pytest.mark.parametrize("method", METHODS)
def test_one_step_on_a_score_without_randomness(monkeypatch, method):
    looks = watch_queries(monkeypatch)
    detector = Detector("energy", MODEL, threshold=0.0)
    result = detector_aware(
        detector, X, Y, method=method, weight=3.0, eps=0.5, step=0.05, steps=1, margin=0.1
    )
    start = looks[0].requires_grad_()
    logits = MODEL(start)
    loss = functional.cross_entropy(logits, Y, reduction="none")
    (up,) = torch.autograd.grad(loss.sum(), start, retain_graph=True)
    (down,) = torch.autograd.grad(logits.logsumexp(1).sum(), start)  # minus the energy
    p = logits.softmax(1)
    lead = p.scatter(1, Y[:, None], 0).amax(1) - p.gather(1, Y[:, None])[:, 0]
    wrong = (lead > 0.1)[:, None, None, None]
    one, other = torch.where(wrong, down, up), torch.where(wrong, up, down)
    if method == "lagrangian":
        one = up + 3 * down
    if method == "orthogonal":
        one = without_conflict(one, other)
    ball = ThreatModel("linf", 0.5)
    after = ball.project(X, ball.step(start.detach(), one, 0.05))
    torch.testing.assert_close(looks[1], after)
    assert (result.forward, result.backward) == (9 * 3, 9 * (2 if method == "orthogonal" else 1))


def test_a_large_score_does_not_hide_that_f_is_wrong(monkeypatch):
    """Wrong iterates come first whatever the scale of the score, and the lowest of them is kept."""
    scaled = ScoreEntry("large", lambda log_p: 100 + 50 * log_p.exp().amax(1))
    detector = Detector(scaled, MODEL, threshold=140.0)
    result = detector_aware(detector, X, Y, eps=0.1, steps=8)
    plain = pgd(MODEL, X, Y, eps=0.1, step=0.025, steps=8, snapshots=range(9))
    once = torch.stack([says(MODEL, image) != Y for image in plain.values()]).any(0)
    assert torch.equal(says(MODEL, result.examples) != Y, once)
    assert 0 < int(once.sum()) < 9


def test_an_attack_that_ignores_the_detector_is_judged_by_it(detectors, points):
    """Other attacks take a detector too: its defence, or its model, is what they climb."""
    x, y = points
    for name in ("energy", "dissent"):
        detector = detectors[name]
        result = eot_pgd(detector, x, y, eps=0.15, steps=5, draws=3)
        alone = eot_pgd(detector.inference, x, y, eps=0.15, steps=5, draws=3)
        torch.testing.assert_close(result.examples, alone.examples)
        assert torch.equal(result.fooled, judge(detector, result.examples, y))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "select"}, "did you mean 'selective'"),
        ({"weight": -1}, "weight must be at least 0"),
        ({"margin": 2}, r"margin must be in \[-1, 1\]"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"schedule": "wild"}, "unknown schedule .wild."),
        ({"step": -0.1}, "step must be at least 0"),
        ({"eps": -1}, "eps must be at least 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        detector_aware(tiny(), X, Y, **settings)


def test_bad_inputs():
    with pytest.raises(InputError, match="call calibrate"):
        detector_aware(MixupDetector(MODEL, POOL), X, Y)
    with pytest.raises(InputError, match="saw MixupInference"):
        detector_aware(MixupInference(MODEL, POOL), X, Y)
    with pytest.raises(InputError, match="contains label 3"):
        detector_aware(tiny(), X, Y + 1)
