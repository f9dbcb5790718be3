"""The paper's claims are decided by their intervals."""

from __future__ import annotations

import copy
import inspect

import pytest
from scipy import stats

from mixup_inference import MixupInference
from mixup_inference.defenses import DEFENSES
from mixup_inference.metrics.accuracy import newcombe
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.claims.accuracy import DEFAULT_LAM
from mixup_inference.reporting.figures import charts
from reporting.synthetic_results import BARE, HELPS, figures, first, results, row


def about(found, id_, *about):
    """The claims with this id, about these rows, models or scores."""
    return [c for c in claims(found) if c.id == id_ and set(about) <= set(c.about)]


def verdict(found, id_, *names):
    (claim,) = about(found, id_, *names)
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
    assert verdict(results(bare, defended), "oblivious-robustness") == expected


@pytest.mark.parametrize(
    ("noise", "expected"),
    [((480, 50, 60), "holds"), ((480, 195, 340), "undecided"), ((480, 300, 340), "does not hold")],
)
def test_the_best_baseline_is_the_one_to_beat(noise, expected):
    rows = [BARE, HELPS, row("mixup", "gaussian", *noise), row("mixup", "rotation", 480, 10, 10)]
    assert verdict(results(*rows), "beats-baseline") == expected


def test_the_ablation():
    erm = row("erm", "none", 490, 5, 20), row("erm", "mi-ol", 480, 20, 40)
    assert verdict(results(BARE, HELPS, *erm), "mixup-training") == "holds"
    strong = row("erm", "none", 490, 5, 20), row("erm", "mi-ol", 480, 300, 450)
    assert verdict(results(BARE, HELPS, *strong), "mixup-training") == "does not hold"


def test_an_ablation_with_another_lambda_is_also_made_with_the_same_one():
    other = row("erm", "mi-ol", 480, 20, 40) | {"settings": {"lam": 0.8}}
    same = row("erm", "mi-ol", 470, 300, 450) | {"settings": {"lam": 0.5}}
    helps, bare = HELPS | {"settings": {"lam": 0.5}}, row("erm", "none", 490, 5, 20)
    id_ = "mixup-training"
    (only,) = about(results(BARE, helps, bare, other), id_)
    assert "[lambda 0.5 and 0.8]" in only.statement
    first, second = about(results(BARE, helps, bare, other, same), id_)
    assert (first.statement, first.verdict) == (only.statement, "holds")
    assert "[lambda 0.5]" in second.statement
    assert second.verdict == "does not hold"
    (alone,) = about(results(BARE, helps, bare, same), id_)
    assert "lambda" not in alone.statement


def test_combined():
    for combined, expected in (
        (row("mixup", "mi-combined", 490, 300, 400), "holds"),
        (row("mixup", "mi-combined", 490, 100, 300), "does not hold"),
        (row("mixup", "mi-combined", 482, 202, 352), "undecided"),
        (row("mixup", "mi-combined", 499, 172, 322), "undecided"),  # one good column is not enough
    ):
        found = results(BARE, HELPS, combined)
        assert verdict(found, "combined-as-good") == expected


def test_claims_are_about_objectives_not_names():
    other = copy.deepcopy(results(BARE, HELPS))
    other["spec"]["models"] = {"mixup": {"weights": "theirs.safetensors"}}
    assert claims(other) == []
    other["spec"]["models"] = {"mixup": {}}
    other["spec"]["training"] = {"objective": "mixup"}
    assert verdict(other, "oblivious-robustness") == "holds"


def test_a_claim_names_its_row():
    (claim,) = about(results(BARE, HELPS), "oblivious-robustness")
    assert claim.about == ("mixup + mi-ol",)


def test_claims_of_the_figures():
    found = results(BARE, HELPS, figures=figures())
    assert verdict(found, "linearity") == "holds"
    assert verdict(found, "detection", "mixup", "low confidence") == "holds"
    assert verdict(found, "detection", "mixup", "MI-OL") == "holds"
    assert verdict(found, "robustness-improving-condition") == "holds"
    assert verdict(found, "input-transfer") == "holds"
    assert verdict(found, "perturbation-shrinkage") == "undecided"
    other = results(BARE, HELPS, figures=figures(0.3, 0.2, pl=0.5, confidence=0.9, fall=0.2))
    assert verdict(other, "linearity") == "does not hold"
    assert verdict(other, "detection", "mixup", "low confidence") == "does not hold"
    assert verdict(other, "robustness-improving-condition") == "does not hold"


def test_few_points_decide_little():
    few, many = (results(figures=figures(rise=0.03, fall=-0.03, count=n)) for n in (3, 100))
    assert (
        verdict(few, "robustness-improving-condition") == "undecided"
    )  # Student's t, not the normal
    assert verdict(many, "robustness-improving-condition") == "holds"


def test_a_model_with_weights_is_considered_if_its_training_is_known():
    found = results(BARE, HELPS)
    found["spec"]["models"]["mixup"] = {"weights": "somewhere"}
    assert claims(found) == []
    found["trainings"] = {"mixup": None}  # a stranger's weights
    assert claims(found) == []
    found["trainings"] = {"mixup": {"objective": "mixup"}}
    assert verdict(found, "oblivious-robustness") == "holds"


def test_each_mi_ol_row_is_compared_with_the_baselines_of_its_own_group():
    tuned = [
        row("mixup", "mi-ol", 470, 300, 400) | {"title": "tuned MI-OL", "group": "tuned"},
        row("mixup", "gaussian", 470, 310, 450) | {"title": "tuned noise", "group": "tuned"},
    ]
    noise = row("mixup", "gaussian", 470, 90, 100)
    found = results(BARE, HELPS, noise, *tuned)
    first, second = about(found, "beats-baseline")
    assert (first.about, first.verdict) == (("mixup + mi-ol",), "holds")
    assert (second.about, second.verdict) == (("tuned MI-OL",), "does not hold")
    assert "tuned noise" not in first.evidence


def trained(gains, lam=0.5, **trainings):
    """Models that are alike but for their trainings, and what MI-OL leaves of each."""
    rows = []
    for model, gain in zip(trainings, gains, strict=True):
        rows += [row(model, "none", 490, 5, 20), row(model, "mi-ol", 480, 5 + gain, 20 + gain)]
        rows[-1]["settings"] = {} if lam is None else {"lam": lam}
    base = {"objective": "mixup", "epochs": 40, "lam": None}
    return results(*rows, trainings={name: base | own for name, own in trainings.items()})


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
    (claim,) = about(found, "longer-training")
    assert claim.verdict == expected
    assert claim.about == ("long + mi-ol", "short + mi-ol")
    assert claim.estimates[0][0] == pytest.approx((gains[2] - gains[0]) / 500)


@pytest.mark.parametrize("own", [{"epochs": 5}, {"lam": 0.5}])
def test_trainings_without_mixup_say_nothing_about_mixup_training(own):
    plain = {"objective": "erm"}
    found = trained((10, 200), one=plain | own, two=plain)
    assert about(found, "longer-training") == about(found, "matched-lambda") == []


@pytest.mark.parametrize("lam", [0.5, None])
@pytest.mark.parametrize(
    ("gains", "expected"), [((10, 200), "holds"), ((90, 95), "undecided"), ((200, 10), "does not")]
)
def test_a_training_with_the_lambda_of_mi_ol_is_compared_with_the_usual_one(gains, expected, lam):
    found = trained(gains, lam=lam, usual={}, matched={"lam": 0.5})
    (claim,) = about(found, "matched-lambda")
    assert claim.verdict.startswith(expected)
    other = trained(gains, lam=lam, usual={}, unmatched={"lam": 0.3})
    assert about(other, "matched-lambda") == []


def test_only_rows_with_the_same_settings_are_compared():
    found = trained((10, 200), usual={}, matched={"lam": 0.5})
    found["rows"][1]["settings"] = {"lam": 0.9}
    assert about(found, "matched-lambda") == []
    found["rows"].append(row("usual", "mi-ol", 480, 400, 400) | {"settings": {"lam": 0.5}})
    (claim,) = about(found, "matched-lambda")
    assert claim.verdict == "does not hold"


def test_the_usual_lambda_is_that_of_mixup_inference():
    assert inspect.signature(MixupInference).parameters["lam"].default == DEFAULT_LAM


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
    assert verdict(paired, "longer-training") == "holds"
    alone = copy.deepcopy(paired)
    for some in alone["rows"]:
        for one in some["cells"].values():
            del one["right"]
    assert verdict(alone, "longer-training") == "undecided"


def test_a_rival_is_beaten_only_if_the_interval_says_so():
    """The best rival is beaten on the same points, a weaker one on others that it has right."""
    ours = row("mixup", "mi-ol", *(first(250) for _ in range(3)))
    best = row("mixup", "gaussian", *(first(240) for _ in range(3)))
    other = row("mixup", "rotation", *(first(235, skip=265) for _ in range(3)))
    assert verdict(results(ours, best), "beats-baseline") == "holds"
    found = results(ours, best, other)
    (claim,) = about(found, "beats-baseline")
    assert claim.verdict == "undecided"
    assert "compared with mixup + rotation" in claim.evidence


def adaptive(difference, low, high, *, failed=(), left=0.2, checked=True):
    """Adaptive attacks on a model and on MI-OL."""

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
        (adaptive(*MORE), "holds"),
        (adaptive(*NOTHING), "does not hold"),
        (adaptive(-0.1, -0.15, -0.05), "does not hold"),
        (adaptive(0.05, -0.02, 0.12), "undecided"),
        (adaptive(*MORE, checked=False), "undecided"),
        (adaptive(*MORE, failed=["mixup + mi-ol"]), "undecided"),  # its attack may be what is weak
        (adaptive(*MORE, failed=["mixup"]), "holds"),  # a stronger attack on the base adds to it
        (adaptive(*NOTHING, failed=["mixup + mi-ol"]), "does not hold"),
        (adaptive(*NOTHING, failed=["mixup"]), "undecided"),
        (adaptive(*NOTHING, failed=["mixup"], left=0.0), "does not hold"),  # none left to find
    ],
)
def test_robustness_to_adaptive_attacks(found, expected):
    assert verdict(found, "adaptive-robustness") == expected


def test_results_without_figures_or_with_unknown_trainings_have_claims_too():
    found = results(BARE, HELPS, figures=None, trainings={"a": {}, "mixup": {"objective": "mixup"}})
    assert verdict(found, "oblivious-robustness") == "holds"


def test_a_new_baseline_is_compared_without_an_edit():
    """A defence counts as a baseline by its group; one that nobody knows is left out."""
    other = row("mixup", "brand-new", 480, 300, 400)
    found = results(BARE, HELPS, row("mixup", "gaussian", 480, 50, 60), other)
    assert verdict(found, "beats-baseline") == "holds"
    DEFENSES.register("brand-new", group="baseline")(lambda model: model)
    try:
        assert verdict(found, "beats-baseline") == "does not hold"
    finally:
        DEFENSES.remove("brand-new")


def test_every_score_without_a_ratio_is_a_baseline_of_detection():
    some = figures()
    scores = some["mixup"]["detection"]["scores"]
    scores.append({**scores[-1], "score": "my.package:score", "auc": 0.95, "low": 0.9, "high": 1.0})
    found = results(BARE, HELPS, figures=some)
    assert verdict(found, "detection", "mixup", "my.package:score") == "does not hold"
    assert verdict(found, "detection", "mixup", "low confidence") == "holds"


def test_the_interval_of_a_mean_is_the_same_in_a_claim_and_in_a_figure(whole):
    """Few points: Student's t, the normal distribution and their mixtures would all differ."""
    some = copy.deepcopy(whole)
    some["trainings"] = {name: {"objective": name} for name in ("mixup", "erm")}
    for found in some["figures"]["mixup"]["theory"]:
        found["counts"]["used"] = 4
    for found in some["figures"].values():
        found["linearity"]["pairs"] = 3
    drawn = {chart.name: chart.rows for chart in charts(some)}

    def bars(name, **wanted):
        rows = (r for r in drawn[name] if wanted.items() <= r.items())
        return [(r["value"], r["low"], r["high"]) for r in rows]

    by_id = {claim.id: claim for claim in claims(some)}
    for id_, quantity in (
        ("input-transfer", "input transfer"),
        ("perturbation-shrinkage", "perturbation shrinkage"),
    ):
        wanted = {"kind": "MI-OL", "component": "y_hat", "lam": 0.5, "quantity": quantity}
        expected = [
            bar
            for attack in ("untargeted", "targeted")
            for bar in bars(f"mechanisms-mixup-{attack}", **wanted)
        ]
        assert list(by_id[id_].estimates) == expected
    mixup, erm = (bars("linearity", model=m, quantity="mean over λ")[0] for m in ("mixup", "erm"))
    assert by_id["linearity"].estimates == (newcombe(erm, mixup),)
    mean, low, high = mixup
    se = some["figures"]["mixup"]["linearity"]["overall"]["se"]
    assert (high - mean) / se == pytest.approx(stats.t.ppf(0.975, 2)) == (mean - low) / se
