"""The sentences follow from the numbers, flattering or not."""

from __future__ import annotations

import copy

import pytest

from mixup_inference.evaluation.accuracy import Accuracy, cell_entry
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.findings import best, summary

COLUMNS = ["clean", "untargeted PGD-10", "targeted PGD-10"]


def row(model, defense, *correct, total=500, passes=1.0):
    cells = {c: cell_entry(Accuracy(n, total)) for c, n in zip(COLUMNS, correct, strict=True)}
    title = model if defense == "none" else f"{model} + {defense}"
    return {"title": title, "group": model, "model": model, "defense": defense,
            "passes_per_image": passes, "cells": cells}  # fmt: skip


def results(*rows, **more):
    return {
        "columns": COLUMNS,
        "rows": list(rows),
        "points": {"test": 500},
        "spec": {
            "data": {"name": "digits"},
            "models": {name: {"objective": name} for name in ("mixup", "erm", "at", "iat")},
            "attack": {"modes": ["untargeted", "targeted"], "steps": [10]},
        },
        **more,
    }


def verdict(found, start):
    (claim,) = [c for c in claims(found) if c.claim.startswith(start)]
    return claim.verdict


BARE = row("mixup", "none", 490, 5, 20)
HELPS = row("mixup", "mi-ol", 480, 200, 350, passes=31.0)


def test_a_defence_that_helps():
    text = " ".join(summary(results(BARE, HELPS)))
    assert "mixup + mi-ol helps: untargeted PGD-10 40.0% instead of 1.0%" in text
    assert "on clean images -2.0 points [" in text
    assert "31 forward passes an image" in text
    assert "does not know of the defence" in text
    assert verdict(results(BARE, HELPS), "MI-OL makes a mixup-trained") == "holds"


def test_a_defence_that_does_harm():
    harms = row("mixup", "mi-ol", 300, 5, 20)
    bare = row("mixup", "none", 490, 300, 400)
    text = " ".join(summary(results(bare, harms)))
    assert "mixup + mi-ol does harm" in text
    assert "helps" not in text
    assert verdict(results(bare, harms), "MI-OL makes a mixup-trained") == "does not hold"


def test_a_defence_that_makes_no_difference():
    same = row("mixup", "mi-ol", 489, 8, 25)
    text = " ".join(summary(results(BARE, same)))
    assert "No measurable difference under attack: mixup + mi-ol." in text
    assert verdict(results(BARE, same), "MI-OL makes a mixup-trained") == "undecided"


def test_a_defence_that_helps_against_one_attack_only():
    mixed = row("mixup", "mi-ol", 489, 200, 20)
    assert "mixup + mi-ol depends on the attack" in " ".join(summary(results(BARE, mixed)))
    assert verdict(results(BARE, mixed), "MI-OL makes a mixup-trained") == "undecided"


@pytest.mark.parametrize(
    ("noise", "expected"),
    [((480, 50, 60), "holds"), ((480, 195, 340), "undecided"), ((480, 300, 340), "does not hold")],
)
def test_the_best_baseline_is_the_one_to_beat(noise, expected):
    rows = [BARE, HELPS, row("mixup", "gaussian", *noise), row("mixup", "rotation", 480, 10, 10)]
    assert verdict(results(*rows), "On a mixup-trained model, MI-OL is better") == expected


def test_the_ablation():
    erm = row("erm", "none", 490, 5, 20), row("erm", "mi-ol", 480, 20, 40)
    assert verdict(results(BARE, HELPS, *erm), "The gain comes from mixup") == "holds"
    strong = row("erm", "none", 490, 5, 20), row("erm", "mi-ol", 480, 300, 450)
    assert verdict(results(BARE, HELPS, *strong), "The gain comes from mixup") == "does not hold"


def test_combined():
    for combined, expected in (
        (row("mixup", "mi-combined", 490, 300, 400), "holds"),
        (row("mixup", "mi-combined", 490, 100, 300), "does not hold"),
        (row("mixup", "mi-combined", 482, 202, 352), "undecided"),
        (row("mixup", "mi-combined", 499, 172, 322), "undecided"),  # one good column is not enough
    ):
        found = results(BARE, HELPS, combined)
        assert verdict(found, "MI-Combined is as good") == expected


def test_claims_are_about_objectives_not_names():
    other = copy.deepcopy(results(BARE, HELPS))
    other["spec"]["models"] = {"mixup": {"weights": "theirs.safetensors"}}
    assert claims(other) == []
    other["spec"]["models"] = {"mixup": {}}
    other["spec"]["training"] = {"objective": "mixup"}
    assert verdict(other, "MI-OL makes a mixup-trained") == "holds"


def test_a_claim_names_the_row_it_judges():
    (claim,) = [c for c in claims(results(BARE, HELPS)) if c.claim.startswith("MI-OL makes")]
    assert claim.evidence.startswith("mixup + mi-ol, ")


def test_only_what_is_significantly_best_is_marked():
    rows = [BARE, HELPS, row("mixup", "gaussian", 480, 190, 20), row("erm", "none", 499, 1, 1)]
    marked = best(results(*rows))
    assert marked == {"clean": set(), "untargeted PGD-10": set(), "targeted PGD-10": {1}}


def figures(mixup=0.05, erm=0.15, pl=0.8, confidence=0.4, rise=0.3, fall=-0.4, count=100):
    def estimate(mean):
        return {"mean": mean, "se": 0.01}

    def score(name, auc):
        lam = None if name == "low confidence" else 0.5
        return {"score": name, "lam": lam, "attack": "untargeted", "auc": auc,
                "low": auc - 0.03, "high": auc + 0.03}  # fmt: skip

    theory = [
        {
            "kind": "mi-ol",
            "lam": lam,
            "attack": "untargeted",
            "adversarial": {"delta_y": estimate(rise), "delta_y_hat": estimate(fall)},
            "ric": {"points": 90, "total": 100},
            "counts": {"used": count},
            "y_hat": {
                "input_transfer": estimate(0.2),
                "perturbation_shrinkage": estimate(0.001),
            },
        }
        for lam in (0.4, 0.5)
    ]
    detection = [score("MI-PL", pl), score("MI-OL", 0.7), score("low confidence", confidence)]
    common = {"detection": {"scores": detection}, "theory": theory}
    return {
        "mixup": {"linearity": {"overall": estimate(mixup), "pairs": 500}, **common},
        "erm": {"linearity": {"overall": estimate(erm), "pairs": 500}, **copy.deepcopy(common)},
    }


def test_claims_of_the_figures():
    found = results(BARE, HELPS, figures=figures())
    assert verdict(found, "Mixup training makes a model more linear") == "holds"
    assert verdict(found, "MI-PL detects better than low confidence") == "holds"
    assert verdict(found, "MI-PL detects better than MI-OL") == "holds"
    assert verdict(found, "Oblivious PGD satisfies") == "holds"
    assert verdict(found, "Input transfer") == "holds"
    assert verdict(found, "Perturbation shrinkage") == "undecided"
    other = results(BARE, HELPS, figures=figures(0.3, 0.2, pl=0.5, confidence=0.9, fall=0.2))
    assert verdict(other, "Mixup training makes a model more linear") == "does not hold"
    assert verdict(other, "MI-PL detects better than low confidence") == "does not hold"
    assert verdict(other, "Oblivious PGD satisfies") == "does not hold"


def test_few_points_decide_little():
    few, many = (results(figures=figures(rise=0.03, fall=-0.03, count=n)) for n in (3, 100))
    assert verdict(few, "Oblivious PGD satisfies") == "undecided"  # Student's t, not the normal
    assert verdict(many, "Oblivious PGD satisfies") == "holds"


def test_linearity_in_words():
    for value, words in ((0.05, "close to linear"), (0.15, "only roughly"), (0.4, "far from")):
        assert words in " ".join(summary(results(BARE, figures=figures(mixup=value))))


def test_without_attack_there_is_little_to_say():
    document = results(BARE, HELPS)
    del document["spec"]["attack"]
    document["columns"] = ["clean"]
    text = summary(document)
    assert text[0] == "Tested on 500 test points of digits, without any attack."
    assert "on clean images -2.0 points" in text[1]
    assert claims(document) == []


def test_a_model_with_weights_is_judged_by_the_training_that_it_tells_of():
    found = results(BARE, HELPS)
    found["spec"]["models"]["mixup"] = {"weights": "somewhere"}
    assert claims(found) == []
    found["trainings"] = {"mixup": None}  # a stranger's weights
    assert claims(found) == []
    found["trainings"] = {"mixup": {"objective": "mixup"}}
    assert verdict(found, "MI-OL makes a mixup-trained") == "holds"


def test_each_mi_ol_row_is_compared_with_the_baselines_of_its_own_group():
    tuned = [
        row("mixup", "mi-ol", 470, 300, 400) | {"title": "tuned MI-OL", "group": "tuned"},
        row("mixup", "gaussian", 470, 310, 450) | {"title": "tuned noise", "group": "tuned"},
    ]
    noise = row("mixup", "gaussian", 470, 90, 100)
    found = results(BARE, HELPS, noise, *tuned)
    start = "On a mixup-trained model, MI-OL is better"
    first, second = (c for c in claims(found) if c.claim.startswith(start))
    assert ("mixup + mi-ol" in first.claim, first.verdict) == (True, "holds")
    assert ("tuned MI-OL" in second.claim, second.verdict) == (True, "does not hold")
    assert "tuned noise" not in first.evidence


def trained(gains, **trainings):
    """Models that are alike but for their trainings, and what MI-OL leaves of each."""
    rows = []
    for model, gain in zip(trainings, gains, strict=True):
        rows += [row(model, "none", 490, 5, 20), row(model, "mi-ol", 480, 5 + gain, 20 + gain)]
        rows[-1]["settings"] = {"lam": 0.5}
    base = {"objective": "mixup", "epochs": 40, "lam": None}
    return results(*rows, trainings={name: base | own for name, own in trainings.items()})


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((10, 80, 200), "holds"), ((100, 20, 110), "undecided"), ((200, 80, 10), "does not hold")],
)
def test_the_longest_training_is_compared_with_the_shortest(gains, expected):
    found = trained(gains, short={"epochs": 5}, middle={"epochs": 10}, long={"epochs": 20})
    assert verdict(found, "Longer mixup training") == expected
    (claim,) = [c for c in claims(found) if c.claim.startswith("Longer")]
    assert claim.evidence.startswith(f"untargeted PGD-10: 20 epochs +{gains[2] / 5:.1f} points [")


def test_trainings_without_mixup_say_nothing_about_longer_mixup_training():
    plain = {"objective": "erm"}
    found = trained((10, 200), short=plain | {"epochs": 5}, long=plain)
    assert [c for c in claims(found) if c.claim.startswith("Longer")] == []


@pytest.mark.parametrize(
    ("gains", "expected"), [((10, 200), "holds"), ((90, 95), "undecided"), ((200, 10), "does not")]
)
def test_a_training_with_the_lambda_of_mi_ol_is_compared_with_the_usual_one(gains, expected):
    found = trained(gains, usual={}, matched={"lam": 0.5})
    assert verdict(found, "MI-OL gains more if training mixes").startswith(expected)
    other = trained(gains, usual={}, unmatched={"lam": 0.3})
    assert [c for c in claims(other) if c.claim.startswith("MI-OL gains more if")] == []


def known(difference, low, high, passed=True):
    """What attackers who know the defence leave of a model and of MI-OL on it."""
    check = {"name": "gradients", "detail": "as they should be", "passed": passed}
    common = {"worst": {"robust": {"accuracy": 0.2}}, "attacks": [], "checks": [check]}
    versus = {"difference": difference, "low": low, "high": high}
    rows = [
        common | {"title": BARE["title"], "base": None, "versus_base": None},
        common | {"title": HELPS["title"], "base": BARE["title"], "versus_base": versus},
    ]
    return results(BARE, HELPS, adaptive={"rows": rows})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (known(0.1, 0.05, 0.15), "holds"),
        (known(0.01, -0.005, 0.02), "does not hold"),  # whatever it adds is next to nothing
        (known(-0.1, -0.15, -0.05), "does not hold"),
        (known(0.05, -0.02, 0.12), "undecided"),
        (known(0.1, 0.05, 0.15, passed=False), "undecided"),  # the attack may be what is weak
        (known(0.01, -0.005, 0.02, passed=False), "does not hold"),
    ],
)
def test_whether_anything_is_left_against_attackers_who_know(found, expected):
    assert verdict(found, "MI-OL makes a mixup-trained model more robust to att") == expected
