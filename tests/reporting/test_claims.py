"""The paper's claims are judged by the intervals, flattering or not."""

from __future__ import annotations

import copy
import inspect

import pytest

from mixup_inference import MixupInference
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.claims.accuracy import USUAL_LAM
from reporting.made_up import BARE, HELPS, figures, first, results, row


def verdict(found, start):
    (claim,) = [c for c in claims(found) if c.claim.startswith(start)]
    return claim.verdict


@pytest.mark.parametrize(
    ("defended", "bare", "expected"),
    [
        (HELPS, BARE, "holds"),
        (row("mixup", "mi-ol", 300, 5, 20), row("mixup", "none", 490, 300, 400), "does not hold"),
        (row("mixup", "mi-ol", 489, 8, 25), BARE, "does not hold"),  # next to nothing
        (row("mixup", "mi-ol", 489, 200, 20), BARE, "does not hold"),  # targeted nothing
        (row("mixup", "mi-ol", 489, 200, 30), BARE, "undecided"),
    ],
)
def test_more_robust_under_both_attacks(defended, bare, expected):
    assert verdict(results(bare, defended), "MI-OL makes a mixup-trained") == expected


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


def test_an_ablation_with_another_lambda_is_judged_with_the_same_one_too():
    other = row("erm", "mi-ol", 480, 20, 40) | {"settings": {"lam": 0.8}}
    same = row("erm", "mi-ol", 470, 300, 450) | {"settings": {"lam": 0.5}}
    helps, bare = HELPS | {"settings": {"lam": 0.5}}, row("erm", "none", 490, 5, 20)
    start = "The gain comes from mixup training: MI-OL gains more on mixup than on erm"
    (only,) = about(results(BARE, helps, bare, other), start)
    assert only.claim == f"{start} [lambda 0.5 and 0.8]."
    first, second = about(results(BARE, helps, bare, other, same), start)
    assert (first.claim, first.verdict) == (only.claim, "holds")
    assert (second.claim, second.verdict) == (f"{start} [lambda 0.5].", "does not hold")
    (alone,) = about(results(BARE, helps, bare, same), start)
    assert alone.claim == f"{start}."


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


def trained(gains, lam=0.5, **trainings):
    """Models that are alike but for their trainings, and what MI-OL leaves of each."""
    rows = []
    for model, gain in zip(trainings, gains, strict=True):
        rows += [row(model, "none", 490, 5, 20), row(model, "mi-ol", 480, 5 + gain, 20 + gain)]
        rows[-1]["settings"] = {} if lam is None else {"lam": lam}
    base = {"objective": "mixup", "epochs": 40, "lam": None}
    return results(*rows, trainings={name: base | own for name, own in trainings.items()})


def about(found, start):
    return [claim for claim in claims(found) if claim.claim.startswith(start)]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((10, 80, 200), "holds"),
        ((55, 70, 90), "holds"),
        ((100, 20, 110), "undecided"),
        ((200, 80, 10), "does not hold"),
    ],
)
def test_the_longest_training_is_compared_with_the_shortest(gains, expected):
    found = trained(gains, short={"epochs": 5}, middle={"epochs": 10}, long={"epochs": 20})
    (claim,) = about(found, "Longer training")
    assert claim.verdict == expected
    assert claim.evidence.startswith(f"untargeted PGD-10: 20 epochs +{gains[2] / 5:.1f} points [")
    assert claim.evidence.endswith("; one training each.")


@pytest.mark.parametrize("own", [{"epochs": 5}, {"lam": 0.5}])
def test_trainings_without_mixup_say_nothing_about_mixup_training(own):
    plain = {"objective": "erm"}
    found = trained((10, 200), one=plain | own, two=plain)
    assert about(found, "Longer") == about(found, "MI-OL gains more") == []


@pytest.mark.parametrize("lam", [0.5, None])
@pytest.mark.parametrize(
    ("gains", "expected"), [((10, 200), "holds"), ((90, 95), "undecided"), ((200, 10), "does not")]
)
def test_a_training_with_the_lambda_of_mi_ol_is_compared_with_the_usual_one(gains, expected, lam):
    found = trained(gains, lam=lam, usual={}, matched={"lam": 0.5})
    (claim,) = about(found, "MI-OL gains more if training mixes")
    assert claim.verdict.startswith(expected)
    other = trained(gains, lam=lam, usual={}, unmatched={"lam": 0.3})
    assert about(other, "MI-OL gains more if") == []


def test_only_rows_with_the_same_settings_are_compared():
    found = trained((10, 200), usual={}, matched={"lam": 0.5})
    found["rows"][1]["settings"] = {"lam": 0.9}
    assert about(found, "MI-OL gains more if") == []
    found["rows"].append(row("usual", "mi-ol", 480, 400, 400) | {"settings": {"lam": 0.5}})
    (claim,) = about(found, "MI-OL gains more if")
    assert claim.verdict == "does not hold"


def test_the_usual_lambda_is_that_of_mixup_inference():
    assert inspect.signature(MixupInference).parameters["lam"].default == USUAL_LAM


def test_gains_that_go_together_are_compared_more_sharply():
    """The same points are gained by both, and 20 more by one of them."""
    names = {"short": 100, "long": 120}
    rows = []
    for model, gain in names.items():
        rows.append(row(model, "none", *(first(10) for _ in range(3))))
        rows.append(row(model, "mi-ol", *(first(10 + gain) for _ in range(3))))
        rows[-1]["settings"] = {}
    lengths = {"short": 5, "long": 40}
    trainings = {m: {"objective": "mixup", "epochs": n} for m, n in lengths.items()}
    paired = results(*rows, trainings=trainings)
    assert verdict(paired, "Longer training") == "holds"
    alone = copy.deepcopy(paired)
    for some in alone["rows"]:
        for one in some["cells"].values():
            del one["right"]
    assert verdict(alone, "Longer training") == "undecided"


def test_a_rival_is_beaten_only_if_that_is_sure():
    """The best rival is beaten on the same points, a weaker one on others that it has right."""
    ours = row("mixup", "mi-ol", *(first(250) for _ in range(3)))
    best = row("mixup", "gaussian", *(first(240) for _ in range(3)))
    other = row("mixup", "rotation", *(first(235, skip=265) for _ in range(3)))
    assert verdict(results(ours, best), "On a mixup-trained model") == "holds"
    found = results(ours, best, other)
    (claim,) = about(found, "On a mixup-trained model")
    assert claim.verdict == "undecided"
    assert "against mixup + rotation" in claim.evidence


def known(difference, low, high, *, failed=(), left=0.2, checked=True):
    """What attackers who know the defence leave of a model and of MI-OL on it."""

    def part(title, **more):
        check = {"name": "gradients", "detail": "as they should be", "passed": title not in failed}
        checks = [check] if checked else []
        return more | {"title": title, "worst": {"robust": {"accuracy": left}},
                       "attacks": [], "checks": checks}  # fmt: skip

    versus = {"difference": difference, "low": low, "high": high}
    rows = [
        part(BARE["title"], base=None, versus_base=None),
        part(HELPS["title"], base=BARE["title"], versus_base=versus),
    ]
    return results(BARE, HELPS, adaptive={"rows": rows})


MORE, NOTHING = (0.1, 0.05, 0.15), (0.01, -0.005, 0.02)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (known(*MORE), "holds"),
        (known(*NOTHING), "does not hold"),
        (known(-0.1, -0.15, -0.05), "does not hold"),
        (known(0.05, -0.02, 0.12), "undecided"),
        (known(*MORE, checked=False), "undecided"),
        (known(*MORE, failed=["mixup + mi-ol"]), "undecided"),  # its attack may be what is weak
        (known(*MORE, failed=["mixup"]), "holds"),  # a stronger attack on the base adds to it
        (known(*NOTHING, failed=["mixup + mi-ol"]), "does not hold"),
        (known(*NOTHING, failed=["mixup"]), "undecided"),
        (known(*NOTHING, failed=["mixup"], left=0.0), "does not hold"),  # none left to find
    ],
)
def test_whether_anything_is_left_against_attackers_who_know(found, expected):
    assert verdict(found, "MI-OL makes a mixup-trained model more robust to att") == expected


def test_results_without_figures_or_with_less_about_trainings_are_judged_all_the_same():
    found = results(BARE, HELPS, figures=None, trainings={"a": {}, "mixup": {"objective": "mixup"}})
    assert verdict(found, "MI-OL makes a mixup-trained") == "holds"
