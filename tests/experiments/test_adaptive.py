"""Attackers who know the defence, from a spec to results.json."""

from __future__ import annotations

import json

import pytest
import torch

from mixup_inference.attacks import base_of, judge
from mixup_inference.datasets import Shape
from mixup_inference.errors import InputError
from mixup_inference.evaluation import check_attack, worst_case
from mixup_inference.experiments import Callback, Experiment, check_spec, parse_spec, plan
from mixup_inference.experiments.adaptive import adaptive
from mixup_inference.experiments.adaptive_attacks import AdaptiveEvaluation, adaptive_rows
from mixup_inference.experiments.adaptive_extras import gallery
from mixup_inference.experiments.spec import smoke
from mixup_inference.models import save_pretrained
from mixup_inference.models.call import count_passes
from mixup_inference.training import Recipe
from specs import merged, tiny_spec, to_toml

ATTACKS = [
    {"attack": "oblivious", "steps": 10},
    {"attack": "transfer", "steps": 2},
    {"attack": "official-adaptive", "steps": 2, "samples": 3},
    {"attack": "paper-adaptive", "steps": 2, "samples": 3},
    {"attack": "eot-pgd", "steps": 10, "draws": 6},
    {"attack": "apgd", "loss": "dlr", "steps": 3, "draws": 2},
    {"attack": "square", "queries": 4, "draws": 2},
    {"attack": "detector-aware", "steps": 4, "draws": 3},
    {"attack": "frozen", "steps": 3},
    {"attack": "foolbox:LinfPGD", "steps": 2, "draws": 2},
]
DOCUMENT = tiny_spec(
    draws=6,
    data={"test": 200, "calibration": 40},
    network=None,
    training=None,
    models={"mixup": {"objective": None, "weights": "WEIGHTS"}, "other": {"weights": "WEIGHTS"}},
    attack={"step": 0.025},
    adaptive={
        "points": 24,
        "repeats": 3,
        "checks": 0,
        "samples": [1, 3],
        "figure_points": 8,
        "figure_steps": 2,
        "gallery": 2,
        "detectors": ["mixup"],
        "detector_scores": ["MI-PL", "energy"],
        "attacks": ATTACKS,
    },
    rows=[
        {"title": "mi-ol", "model": "mixup", "defense": "mi-ol"},
        {"title": "plain", "model": "mixup"},
        {"title": "combined", "model": "mixup", "defense": "mi-combined", "threshold": 0.0},
        {"title": "not attacked", "model": "mixup", "defense": "rotation"},
    ],
)
SPEC = to_toml(DOCUMENT)


class Counting(Callback):
    def __init__(self) -> None:
        self.computed: list[str] = []

    def made(self, what, *, reused, seconds):
        if not reused:
            self.computed.append(what)


@pytest.fixture(scope="module")
def spec(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_pretrained(trained, folder)
    weights = {"weights": str(folder)}
    models = {"mixup": weights, "other": weights}
    return check_spec(merged(DOCUMENT, models=models, adaptive={"rows": ["mi-ol", "combined"]}))


@pytest.fixture(scope="module")
def run(spec, tmp_path_factory):
    """One run of the whole block, and another one of the same folder."""
    folder = tmp_path_factory.mktemp("run")
    listeners = [Counting(), Counting()]
    documents = []
    for listener in listeners:
        experiment = Experiment(spec, folder, callback=listener)
        documents.append(adaptive(experiment))
    return experiment, documents, listeners


def test_everything_is_measured_once_and_read_back_the_same(run):
    _, (first, second), listeners = run
    assert json.loads(json.dumps(first)) == json.loads(json.dumps(second))
    assert "EOT-PGD-10 on mi-ol" in listeners[0].computed
    assert [what for what in listeners[1].computed if not what.startswith("model")] == []


def test_the_base_comes_first_and_each_row_has_the_attacks_that_make_sense(run):
    rows = {row["title"]: row for row in run[1][0]["rows"]}
    assert list(rows) == ["plain", "mi-ol", "combined"]
    named = {title: [a["attack"] for a in row["attacks"]] for title, row in rows.items()}
    everywhere = {"oblivious", "transfer", "eot-pgd", "apgd", "square", "foolbox:LinfPGD"}
    assert set(named["plain"]) == everywhere
    assert set(named["mi-ol"]) == everywhere | {"official-adaptive", "paper-adaptive", "frozen"}
    assert set(named["combined"]) == everywhere | {"detector-aware", "frozen"}
    assert rows["plain"]["base"] is None
    assert rows["plain"]["versus_base"] is None
    assert rows["mi-ol"]["base"] == rows["combined"]["base"] == "plain"
    transfer = next(a for a in rows["mi-ol"]["attacks"] if a["attack"] == "transfer")
    assert transfer["surrogates"] == ["other"]
    assert rows["mi-ol"]["attacks"][4]["title"] == "EOT-PGD-10"


def test_numbers_are_those_of_judging_the_stored_examples_again(run):
    experiment, (document, _), _ = run
    bench = AdaptiveEvaluation(experiment, experiment.spec.adaptive)
    row = next(r for r in experiment.spec.rows if r.title == "mi-ol")
    eot = next(a for a in bench.spec.attacks if a.attack == "eot-pgd")
    record = bench.record(row, eot)
    fooled = judge(
        experiment.defense(row),
        record.file["examples"],
        bench.points.labels,
        repeats=3,
        index=bench.points.index,
    )
    assert torch.equal(fooled, record.fooled)
    entry = document["rows"][1]["attacks"][4]
    assert entry["robust"]["accuracy"] == pytest.approx(1 - float(fooled.double().mean()))
    assert not torch.equal(record.choosing, record.fooled)  # other draws


def test_knowing_the_defence_helps_the_attacker(run):
    row = run[1][0]["rows"][1]
    accuracy = {a["attack"]: a["robust"]["accuracy"] for a in row["attacks"]}
    assert accuracy["eot-pgd"] < accuracy["oblivious"] - 0.1 < row["clean"]["accuracy"] - 0.1
    assert row["worst"]["robust"]["accuracy"] <= min(accuracy.values()) + 0.15
    assert sum(row["worst"]["choice"].values()) == 24
    assert "frozen PGD-3" not in row["worst"]["choice"]
    base = run[1][0]["rows"][0]
    difference = row["worst"]["robust"]["accuracy"] - base["worst"]["robust"]["accuracy"]
    assert row["versus_base"]["difference"] == pytest.approx(difference)
    assert row["versus_base"]["low"] < difference < row["versus_base"]["high"]


def test_the_gallery_shows_interpolated_at_if_there_is_one(spec, trained, tmp_path):
    save_pretrained(trained, tmp_path / "iat", recipe=Recipe(objective="iat"))
    document = spec.model_dump(exclude_none=True)
    document["models"]["other"] = {"weights": str(tmp_path / "iat")}
    document["rows"] = [
        {"title": model, "model": model, "defense": "mi-ol"} for model in ("mixup", "other")
    ]
    document["adaptive"] |= {"rows": [], "gallery": 1}
    document["adaptive"]["attacks"] = [{"attack": "eot-pgd", "steps": 1, "draws": 1}]
    experiment = Experiment(check_spec(document), tmp_path / "run")
    shown = gallery(
        AdaptiveEvaluation(experiment, experiment.spec.adaptive), list(experiment.spec.rows)
    )
    assert shown["title"] == "other"


def test_figures_and_detectors(run):
    document = run[1][0]
    (curves,) = document["samples"]
    assert curves["title"] == "mi-ol"
    assert curves["base"]["title"] == "plain"
    assert {name: [p["samples"] for p in c] for name, c in curves["curves"].items()} == {
        "official": [1, 3],
        "paper": [1, 3],
        "eot": [1, 3],
    }
    assert curves["base"]["robust"]["points"] == 8
    shown = document["gallery"]
    assert shown["title"] == "mi-ol"
    assert shown["eps"] == pytest.approx(0.2)
    assert len(shown["entries"]) == 2
    detectors = document["detectors"]
    assert [d["title"] for d in detectors] == [
        "plain: MI-PL as a detector",
        "plain: energy as a detector",
    ]
    assert [d["lam"] for d in detectors] == [0.5, None]
    for detector in detectors:
        assert [a["title"] for a in detector["attacks"]] == [
            "oblivious PGD-10 (ignores the detector)",
            "detector-aware PGD-4 (knows the detector)",
        ]
        assert detector["attacks"][0]["wrong"]["total"] == 24
        assert all(
            attack["low"] <= attack["auc"] <= attack["high"] for attack in detector["attacks"]
        )


def test_the_plan_counts_what_the_attacks_do(run):
    experiment, (document, _), _ = run
    work = {w.title: w for w in plan(experiment.spec, Shape(1797, 0, 1, (8, 8), 10))}
    for row in document["rows"]:
        for attack in row["attacks"]:
            if attack["group"] in ("peer", "detector") or row["defense"] == "mi-combined":
                continue  # data decide how far they go
            counted = work[f"{row['title']}: {attack['title']}"]
            assert counted.backward == pytest.approx(24 * attack["backward"])
            answers = {"none": 1, "mi-ol": 3}[row["defense"]]
            looks = answers if attack["attack"] == "frozen" else 2 * answers
            each = {"none": 1, "mi-ol": 7}[row["defense"]]
            assert counted.forward == pytest.approx(24 * (attack["forward"] + looks * each))
    assert work["mi-ol: gallery"].backward == 2 * work["mi-ol: EOT-PGD-10"].backward / 24
    assert any("MI-PL as a detector" in title for title in work)


def test_the_plan_counts_the_checks_about_right(run):
    experiment, _, _ = run
    spec = experiment.spec
    spec = spec.model_copy(update={"adaptive": spec.adaptive.model_copy(update={"checks": 12})})
    work = {w.title: w for w in plan(spec, Shape(1797, 0, 1, (8, 8), 10))}
    bench = AdaptiveEvaluation(experiment, spec.adaptive)
    some = bench.points.take(torch.arange(12))
    (row,) = (row for row in spec.rows if row.title == "mi-ol")
    defense = experiment.defense(row)
    with count_passes(base_of(defense)) as passes:
        check_attack(
            defense, bench.clean(some), some.labels, steps=10, draws=6, **bench.options(some)
        )
    expected = work["mi-ol: checks (about)"]
    assert 0.6 < expected.forward / passes.forward < 1.7
    assert 0.6 < expected.backward / passes.backward < 1.7


def test_a_row_has_one_defence(run):
    """So that what it prepares, F on the whole pool for instance, is prepared once."""
    experiment, _, _ = run
    for row in experiment.spec.rows:
        assert experiment.defense(row) is experiment.defense(row)


def test_a_damaged_file_is_made_again(run, spec):
    experiment, (document, _), _ = run
    listener = Counting()
    path = next((experiment.folder / "attacks").glob("mixup-mi-ol-eot-pgd-*"))
    path.write_bytes(path.read_bytes()[:100])
    again = adaptive(Experiment(spec, experiment.folder, callback=listener))
    assert len([what for what in listener.computed if "on mi-ol" in what]) == 1
    strip = lambda d: json.loads(json.dumps(d, default=str).replace("seconds", "s"))  # noqa: E731
    for one, other in zip(strip(document)["rows"], strip(again)["rows"], strict=True):
        assert [a["robust"] for a in one["attacks"]] == [a["robust"] for a in other["attacks"]]


def test_a_model_without_a_row_of_its_own_gets_one():
    plain = 'title = "plain"\nmodel = '
    rows = parse_spec(SPEC.replace(f'{plain}"mixup"', f'{plain}"other"')).rows
    titles = [row.title for row in adaptive_rows(rows, ("combined",))]
    assert titles == ["mixup (no defence)", "combined"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('attack = "eot-pgd"', 'attack = "eot-pdg"', "eot-pgd"),
        ("queries = 4", "querys = 4", "queries"),
        ("queries = 4", "queries = 4.5", "whole number"),
        ('attack = "foolbox:LinfPGD"', 'attack = "foolbox:LinfPDG"', "LinfPGD"),
        ('detectors = ["mixup"]', 'detectors = ["mixing"]', "mixup"),
        ('"energy"', '"energie"', "unknown detection score 'energie'"),
        ("calibration = 40", "calibration = 4", "calibration"),
        ("points = 24", 'rows = ["nobody"]', "nobody"),
        ('attack = "square"', 'attack = "square"\nsurrogates = ["other"]', "surrogates"),
        ('attack = "transfer"', 'attack = "transfer"\nsurrogates = ["nobody"]', "nobody"),
        ('attack = "transfer"', 'attack = "oblivious"\ntitle = "oblivious PGD-10"', "titles"),
        ("[attack]\neps = 0.1\nstep = 0.025\nsteps = [2]\n", "", "attack"),
        ("checks = 0", "check = 0", "checks"),
        ("gallery = 2", "detector_lam = 1.5", "detector_lam"),
    ],
)
def test_mistakes_in_a_spec_are_named(old, new, words):
    assert old in SPEC
    with pytest.raises(InputError, match=words):
        parse_spec(SPEC.replace(old, new, 1))


def test_smoke_is_small(spec):
    small = smoke(spec)
    assert small.adaptive.points == 8
    names = [attack.name for attack in small.adaptive.attacks]
    assert names == [f"{attack.name} (smoke)" for attack in spec.adaptive.attacks]
    assert all(a.settings.get("steps", 1) == 1 for a in small.adaptive.attacks[:-1])


def test_models_can_have_seeds_of_their_own():
    other = {"weights": None, "objective": "erm", "seed": 7}
    spec = check_spec(merged(DOCUMENT, models={"other": other}, network={"name": "small_cnn"}))
    assert spec.recipe("other").seed == 7
    assert spec.seed_of("mixup") == 0


def test_the_worst_case_is_never_decided_by_weak_attacks_that_were_lucky():
    """One attack at 70% on every point and seven at 60%: nothing is gained by choosing."""
    chosen, reported = (
        {
            f"{n}": torch.rand(400, 5, generator=torch.Generator().manual_seed(10 * part + n))
            < (0.7 if n == 3 else 0.6)
            for n in range(8)
        }
        for part in (1, 2)
    )
    fooled, choice = worst_case(chosen, reported)
    assert float(fooled.double().mean()) > 0.68
    assert choice.count("3") == 400


def test_the_worst_case_takes_specialists_where_they_are():
    """Half of the points fall to one attack only, the other half to the other only."""
    half = torch.arange(200) < 100
    rate = {"a": torch.where(half, 0.95, 0.05), "b": torch.where(half, 0.05, 0.95)}
    chosen, reported = (
        {
            name: torch.rand(200, 5, generator=torch.Generator().manual_seed(part + len(name)))
            < share[:, None]
            for name, share in rate.items()
        }
        for part in (1, 2)
    )
    fooled, _ = worst_case(chosen, reported)
    assert float(fooled.double().mean()) > 0.92


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("eot-pgd", "draws = 0"),
        ("eot-pgd", "steps = -1"),
        ("eot-pgd", "steps = true"),
        ("eot-pgd", 'loss = "x"'),
        ("eot-pgd", 'loss = ["x"]'),
        ("eot-pgd", 'schedule = ["x"]'),
        ("eot-pgd", 'step = "a"'),
        ("eot-pgd", "momentum = -1"),
        ("apgd", 'loss = "margin"'),
        ("paper-adaptive", 'average = "x"'),
        ("detector-aware", 'method = "x"'),
        ("square", "p_init = 3"),
        ("square", "queries = 0"),
        ("foolbox:L2PGD", ""),
        ("foolbox:LinfPGD", "draws = 0"),
        ("foolbox:LinfPGD", "stepps = 3"),
    ],
)
def test_settings_that_an_attack_cannot_use_are_refused_before_anything_runs(attack, settings):
    text = to_toml(merged(DOCUMENT, adaptive={"attacks": [{"attack": attack}]}))
    with pytest.raises(InputError):
        parse_spec(text.replace(f'attack = "{attack}"', f'attack = "{attack}"\n{settings}'))


def test_the_main_attack_is_always_among_the_candidates(spec):
    document = spec.model_dump(exclude_none=True)
    document["adaptive"]["attacks"] = [{"attack": "official-adaptive"}]
    small = check_spec(document)
    assert [a.attack for a in small.adaptive.candidates] == ["official-adaptive", "eot-pgd"]


def test_l2_leaves_out_what_is_for_linf(spec):
    document = spec.model_dump(exclude_none=True)
    document["attack"]["norm"] = "l2"
    document["adaptive"]["attacks"] = document["adaptive"]["attacks"][:-1]  # foolbox's LinfPGD
    titles = [work.title for work in plan(check_spec(document), Shape(1797, 0, 1, (8, 8), 10))]
    assert "mi-ol: EOT-PGD-10" in titles
    assert not any("published" in title or "official" in title for title in titles)


def test_what_is_checked_is_the_main_attack_with_all_its_settings(spec, tmp_path, monkeypatch):
    seen = {}

    def spy(*_, others, **settings):
        seen.update(settings, others=list(others))
        return []

    monkeypatch.setattr("mixup_inference.experiments.adaptive.check_attack", spy)
    document = spec.model_dump(exclude_none=True)
    main = {"attack": "eot-pgd", "steps": 2, "momentum": 0.5, "schedule": "cosine"}
    document["adaptive"] |= {"attacks": [main, {"attack": "oblivious", "steps": 2}], "checks": 4}
    document["adaptive"] |= {"samples": [], "gallery": 0, "detectors": [], "rows": ["mi-ol"]}
    adaptive(Experiment(check_spec(document), tmp_path))
    assert (seen["steps"], seen["draws"], seen["loss"]) == (2, 10, "ce")
    assert (seen["momentum"], seen["schedule"]) == (0.5, "cosine")
    assert seen["others"] == ["oblivious PGD-2"]
