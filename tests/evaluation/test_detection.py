from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from sklearn.metrics import roc_auc_score

from mixup_inference import CombinedInference, MixupDetector, pgd
from mixup_inference.defenses import gap
from mixup_inference.detection import SCORES, Detector, ScoreEntry
from mixup_inference.evaluation.detection import (
    answer,
    measure_combined,
    measure_detection,
    scores,
)
from mixup_inference.models.call import count_passes


@pytest.fixture(scope="module")
def measured(trained, pool, parts):
    test, calibration = parts["test"], parts["calibration"]
    x_adv = pgd(trained, test.images, test.labels, eps=0.15, step=0.05, steps=5)
    sets = {
        "clean": test,
        "untargeted": replace(test, images=x_adv),
        "calibration": calibration,
    }
    answers = answer(trained, pool, sets, lams=(0.3, 0.5), draws=4, seed=1, batch_size=70)
    return sets, answers, measure_detection(answers, ["untargeted"])


def test_the_answers_do_not_depend_on_the_batch_size(trained, pool, measured):
    sets, answers, _ = measured
    again = answer(trained, pool, sets, lams=(0.5,), draws=4, seed=1, batch_size=13)
    for name in sets:
        for kind in ("mi-pl", "mi-ol"):
            torch.testing.assert_close(again.after[kind, 0.5][name], answers.after[kind, 0.5][name])


def test_the_scores_are_the_detectors(trained, pool, measured):
    sets, answers, _ = measured
    for kind, labels in (("MI-PL", "predicted"), ("MI-OL", "other")):
        detector = MixupDetector(trained, pool, labels=labels, lam=0.3, draws=4, seed=1)
        points = sets["untargeted"]
        by_detector = detector.score(
            points.pixels, index=points.index, stream="detection untargeted"
        )
        torch.testing.assert_close(scores(answers, "untargeted")[kind, 0.3], by_detector)


def test_auc_against_scikit_learn(measured):
    _, answers, found = measured
    assert len(found["scores"]) == 4 * 2 + 4
    assert {entry["score"] for entry in found["scores"]} == set(SCORES)
    clean, attacked = scores(answers, "clean"), scores(answers, "untargeted")
    truth = [0] * 200 + [1] * 200
    for entry in found["scores"]:
        key = (entry["score"], entry["lam"])
        values = torch.cat([clean[key], attacked[key]]).tolist()
        assert entry["auc"] == pytest.approx(roc_auc_score(truth, values))
        assert entry["low"] <= entry["auc"] <= entry["high"]
        assert ("roc" in entry) == (entry["lam"] != 0.3)
        if entry["lam"] == 0.3:
            continue
        curve = entry["roc"]
        assert curve["false_positives"][0] == curve["true_positives"][0] == 0
        assert curve["false_positives"][-1] == curve["true_positives"][-1] == 1


def test_entropy_and_confidence_by_hand(trained, measured):
    sets, answers, _ = measured
    with torch.no_grad():
        p = trained(sets["clean"].pixels).double().softmax(1)
    found = scores(answers, "clean")
    torch.testing.assert_close(found["low confidence", None], 1 - p.amax(1), atol=1e-5, rtol=0)
    by_hand = torch.distributions.Categorical(p).entropy()
    torch.testing.assert_close(found["entropy", None], by_hand, atol=1e-5, rtol=0)


def test_the_other_scores_are_their_detectors(trained, pool, measured):
    """Those that take more than the answers: logits, draws, squeezed images."""
    sets, answers, _ = measured
    points = sets["untargeted"]
    found = scores(answers, "untargeted")
    others = [name for name, entry in SCORES.items() if not entry.of_answers]
    assert set(others) == {"energy", "feature squeezing", "label histogram", "dissent"}
    for name in others:
        lam = None if SCORES[name].defense is None else 0.3
        detector = Detector(name, trained, pool, lam=0.3, draws=4, seed=1)
        by_detector = detector.score(
            points.pixels, index=points.index, stream="detection untargeted"
        )
        torch.testing.assert_close(found[name, lam], by_detector.detach())


def test_passes_are_shared(trained, pool, measured):
    """One pass and N mixes for each ratio of two defences; one for energy, three for squeezing."""
    some = {"clean": measured[0]["clean"].take(torch.arange(10))}
    with count_passes(trained) as passes:
        answer(trained, pool, some, lams=(0.3, 0.5), draws=4, seed=1, batch_size=7)
    assert passes.forward == 10 * (2 * 2 * (1 + 4) + 1 + 3)


def test_a_new_score_is_one_entry(measured):
    _, answers, found = measured

    @SCORES.register("little change")
    def margin(log_p):
        return -log_p.topk(2).values.diff(dim=1).abs()[:, 0]

    SCORES.add(ScoreEntry("official gap", partial(gap, convention="official"), defense="mi-ol"))
    try:
        more = measure_detection(answers, ["untargeted"])["scores"]
    finally:
        SCORES.remove("little change")
        SCORES.remove("official gap")
    keys = [(entry["score"], entry["lam"]) for entry in more]
    assert {("little change", None), ("official gap", 0.3), ("official gap", 0.5)} < set(keys)
    assert [e for e in more if e["score"] in SCORES] == found["scores"]


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_larger_where_it_is_more_suspicious(name):
    entry = SCORES[name]
    sure, torn = torch.tensor([[0.98, 0.01, 0.01], [0.4, 0.35, 0.25]]).log()[:, None]
    if entry.draws or entry.views:
        same, other = torch.stack([sure, sure], dim=1), torch.stack([sure, torn.roll(1, 1)], dim=1)
        low, high = entry.function(sure, same), entry.function(sure, other)
    elif entry.defense:
        low, high = entry.function(sure, sure), entry.function(sure, torn)
    elif entry.logits:
        low, high = entry.function(9 + sure), entry.function(torn)
    else:
        low, high = entry.function(sure), entry.function(torn)
    assert low.shape == high.shape == (1,)
    assert float(high) > float(low)
    assert entry.title


def test_the_calibrated_threshold_is_judged_on_other_points(measured):
    _, answers, found = measured
    for entry in found["scores"]:
        calibrated = entry["calibrated"]
        values = scores(answers, "calibration")[entry["score"], entry["lam"]]
        assert float((values > calibrated["threshold"]).double().mean()) <= 0.05
        assert calibrated["false_positives"]["total"] == 200
        assert 0 <= calibrated["false_positives"]["accuracy"] < 0.2


def test_combined_at_its_ends_and_in_between(trained, pool, parts, measured):
    sets, answers, _ = measured
    labels = parts["test"].labels
    table = measure_combined(answers, labels, ["untargeted"], lam=0.5)
    for name in ("clean", "untargeted"):
        bare = int((answers.before[name].argmax(1) == labels).sum())
        other = int((answers.after["mi-ol", 0.5][name].argmax(1) == labels).sum())
        assert table[-1]["threshold"] == 1.0
        assert table[-1][name]["correct"] == bare  # nothing exceeds a gap of one
        all_flagged = [row for row in table if row[f"{name} flagged"]["accuracy"] == 1]
        assert all(row[name]["correct"] == other for row in all_flagged)
        flagged = [row[f"{name} flagged"]["correct"] for row in table]
        assert flagged == sorted(flagged, reverse=True)
    # Not the same draws as CombinedInference makes, but the same quantity.
    module = CombinedInference(
        trained, pool, lam_detect=0.5, lam_defend=0.5, threshold=0.1, draws=60
    )
    points = sets["untargeted"]
    many = answer(trained, pool, {"untargeted": points, "clean": points}, lams=(0.5,), draws=60,
                  seed=9, batch_size=100)  # fmt: skip
    row = next(r for r in measure_combined(many, labels, ["untargeted"], lam=0.5)
               if r["threshold"] == 0.1)  # fmt: skip
    predicted = module(points.pixels, index=points.index).argmax(1)
    by_module = float((predicted == labels).double().mean())
    assert row["untargeted"]["accuracy"] == pytest.approx(by_module, abs=0.06)
