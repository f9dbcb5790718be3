"""A change of code makes exactly those results stale that it can change."""

from __future__ import annotations

import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mixup_inference.attacks import detector_aware, pgd
from mixup_inference.defenses import DEFENSES, MixupInference, RandomRotation
from mixup_inference.detection import ScoreEntry
from mixup_inference.detection.scores import energy
from mixup_inference.experiments import (
    Callback,
    Experiment,
    adaptive_attacks,
    adaptive_extras,
    analysis,
    check_spec,
    experiment,
    models,
)
from mixup_inference.experiments.code_hash import PACKAGE, code_hash
from mixup_inference.reporting.summary import summary
from mixup_inference.theory import analyze
from mixup_inference.training import LAST, train
from mixup_inference.utils.io import fingerprint
from specs import merged, tiny_spec

SPEC = tiny_spec(
    data={"test": 10},
    network={"width": 2},
    training={"max_steps": 1, "objective": "erm"},
    models={"mixup": None, "erm": {}},
    attack={"step": 0.1, "steps": [1], "modes": ["untargeted"]},
    rows=[{"title": "erm", "model": "erm"}, {"title": "mi", "model": "erm", "defense": "mi-ol"}],
)


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(
        PACKAGE, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors")
    )


def edit(copied, path, old, new):
    """Change a module of a copy; the changed copy, under a name that no hash is cached for."""
    changed = shutil.copytree(copied, copied.with_name("changed"))
    text = (changed / path).read_text()
    assert old in text
    (changed / path).write_text(text.replace(old, new))
    return changed


def hashes(root):
    return {
        "model": code_hash(train, without=("attacks",), root=root),
        "examples": code_hash(pgd, without=("defenses", "detection"), root=root),
        "mi-ol": code_hash(MixupInference, root=root),
        "rotation": code_hash(RandomRotation, root=root),
        "jpeg": code_hash(DEFENSES["jpeg"].factory, root=root),
        "detector": code_hash(detector_aware, root=root),
        "theory": code_hash(analyze, MixupInference, root=root),
    }


MIXUP = {"mi-ol", "theory", "detector"}


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("pool.py", "lam * x + (1 - lam)", "lam * x + (2 - lam)", {*MIXUP, "model"}),
        ("defenses/stopping_rules.py", "SLACK = 1e-4", "SLACK = 1e-3", MIXUP),
        ("defenses/transforms.py", "angle.cos()", "angle.sin()", {"rotation"}),
        ("defenses/filters.py", "torch.round(x", "torch.floor(x", {"jpeg", "detector"}),
        ("detection/scores.py", "1 - log_p", "2 - log_p", {"detector"}),
        ("attacks/threat_model.py", ".clamp(0, 1)", ".clamp(0, 2)", {"examples", "detector"}),
        ("theory/formulas.py", "def table_1", "CHANGED = 1\n\n\ndef table_1", {"theory"}),
        ("training/batches.py", ".flip(-1)", ".flip(-2)", {"model"}),
        ("reporting/formatting.py", "def percent", "CHANGED = 1\n\n\ndef percent", set()),
        ("utils/text.py", "def plain(", "CHANGED = 1\n\n\ndef plain(", set()),
        ("draws.py", '"""Random numbers', '"""Random words', set()),
        ("draws.py", "import hashlib\n", "import hashlib\n\n# A comment.\n", set()),
    ],
)
def test_a_change_is_seen_by_what_depends_on_it_and_nothing_else(copied, path, old, new, stale):
    before, after = hashes(copied), hashes(edit(copied, path, old, new))
    assert {name for name in before if before[name] != after[name]} == stale


def test_a_copy_has_the_hash_of_the_original(copied):
    assert hashes(copied) == hashes(PACKAGE)


def test_the_file_of_a_thing_of_ones_own_is_hashed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "code_of_mine.py").write_text("def build(model):\n    return model\n")
    import code_of_mine

    before = code_hash(code_of_mine.build)
    assert before == code_hash(code_of_mine.build) != code_hash(pgd)


def test_what_a_partial_has_bound_counts_and_so_does_its_function(copied):
    cold, warm = (partial(energy, temperature=t) for t in (1.0, 2.0))
    assert code_hash(cold, root=copied) == code_hash(cold) != code_hash(warm)
    changed = edit(copied, "detection/scores.py", "-temperature", "+temperature")
    assert code_hash(cold, root=copied) != code_hash(cold, root=changed)


def test_all_functions_of_a_score_count():
    assert ScoreEntry("own", energy, views=len).functions == (energy, len)
    assert ScoreEntry("own", energy).functions == (energy,)


BESIDE = merged(
    SPEC,
    data={"calibration": 20},
    figures={"models": ["erm"], "gallery": 1},
    adaptive={"detectors": ["erm"], "gallery": 1},
)


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("attacks/transfer.py", "50,", "51,", {"detector of erm"}),
        ("evaluation/evaluate.py", "argmax(1)", "argmin(1)", {"detector of erm"}),
        ("experiments/gallery.py", ".round()", ".floor()", {"gallery of erm", "gallery of mi"}),
        (
            "experiments/adaptive_extras.py",
            "clean > threshold",
            "clean >= threshold",
            {"detector of erm", "gallery of mi"},
        ),
    ],
)
def test_the_code_of_figures_and_detectors(tmp_path, copied, monkeypatch, path, old, new, stale):
    made, kept = Experiment(check_spec(BESIDE), tmp_path / "run"), {}
    monkeypatch.setattr(made, "cached", lambda _, title, known, __: kept.setdefault(title, known))

    def identities(root):
        kept.clear()
        for module in (adaptive_attacks, adaptive_extras, analysis):
            monkeypatch.setattr(module, "code_hash", partial(code_hash, root=root))
        analysis.analyses(made, tradeoffs=False)
        bench = adaptive_attacks.AdaptiveEvaluation(made, made.spec.adaptive)
        adaptive_extras.gallery(bench, made.spec.rows)
        adaptive_extras.detector(bench, "erm", "energy")
        return {title: fingerprint(identity) for title, identity in kept.items()}

    before, after = identities(copied), identities(edit(copied, path, old, new))
    assert {"detector of erm", "gallery of erm", "gallery of mi"} <= before.keys()
    assert {title for title in before if before[title] != after[title]} == stale


class Watch(Callback):
    def __init__(self):
        self.events = {}

    def made(self, what, *, reused, seconds):
        self.events[what] = reused

    def cell(self, row, column, accuracy, *, reused):
        self.events[row.title, column.name] = reused


def run(folder, **options):
    watch = Watch()
    made = Experiment(check_spec(SPEC), folder, callback=watch, **options)
    return made, made.run(), watch.events


EVERYTHING = {
    "model erm",
    "untargeted attack on erm",
    ("erm", "clean"),
    ("erm", "untargeted PGD-1"),
    ("mi", "clean"),
    ("mi", "untargeted PGD-1"),
}


@pytest.fixture
def changed(monkeypatch):
    """Pretend that the code behind some things has changed since."""

    def change(*things):
        def hashed(*asked, **options):
            return code_hash(*asked, **options) + ("*" if set(asked) & set(things) else "")

        monkeypatch.setattr(models, "code_hash", hashed)
        monkeypatch.setattr(experiment, "code_hash", hashed)

    return change


@pytest.mark.parametrize(
    ("thing", "stale"),
    [
        (MixupInference, {("mi", "clean"), ("mi", "untargeted PGD-1")}),
        (
            pgd,
            {"untargeted attack on erm", ("erm", "untargeted PGD-1"), ("mi", "untargeted PGD-1")},
        ),
        (train, EVERYTHING),
    ],
)
def test_exactly_what_depends_on_changed_code_is_computed_again(tmp_path, changed, thing, stale):
    assert set(run(tmp_path)[2]) == EVERYTHING
    assert all(run(tmp_path)[2].values())
    changed(thing)
    events = run(tmp_path)[2]
    assert {what for what, reused in events.items() if not reused} == stale
    assert all(run(tmp_path)[2].values())


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("defenses/filters.py", "torch.round(x", "torch.floor(x", False),
        ("detection/scores.py", "1 - log_p", "2 - log_p", False),
        ("attacks/threat_model.py", ".clamp(0, 1)", ".clamp(0, 2)", True),
        ("training/batches.py", ".flip(-1)", ".flip(-2)", True),
    ],
)
def test_the_code_of_adversarial_training(tmp_path, copied, monkeypatch, path, old, new, stale):
    spec = check_spec(merged(SPEC, training={"objective": "at"}))

    def identity(root):
        monkeypatch.setattr(models, "code_hash", partial(code_hash, root=root))
        return Experiment(spec, tmp_path / "run").models.identity("erm")

    before, after = identity(copied), identity(edit(copied, path, old, new))
    assert (before != after) == stale


def test_models_of_older_code_are_used_on_purpose_only(tmp_path, changed):
    first, before, _ = run(tmp_path)
    assert before["reused_models"] == {}
    changed(train)
    again, after, events = run(tmp_path, reuse_models=True)
    assert all(events.values())  # the cells of that model are known again too
    folder = first.models.folder_of("erm")
    assert after["reused_models"] == {"erm": folder.name}
    assert after["rows"] == before["rows"]
    assert any("--reuse-models" in sentence for sentence in summary(after))
    assert not any("--reuse-models" in sentence for sentence in summary(before))
    assert again.models.folder_of("erm") == folder
    for one, other in zip(
        first.models["erm"].parameters(), again.models["erm"].parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_model_of_another_recipe_is_never_reused(tmp_path, changed):
    run(tmp_path)
    changed(train)
    spec = check_spec(merged(SPEC, training={"max_steps": 2}))
    made = Experiment(spec, tmp_path, reuse_models=True)
    made.train()
    assert made.models.reused == {}


def test_a_damaged_model_of_older_code_is_left_alone(tmp_path, changed):
    """Or a new one would be trained in its folder, under the identity of the older code."""
    first, _, _ = run(tmp_path)
    path = first.models.folder_of("erm") / LAST
    damaged = path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])
    path.write_bytes(damaged)
    changed(train)
    again, results, events = run(tmp_path, reuse_models=True)
    assert not events["model erm"]
    assert results["reused_models"] == {}
    assert again.models.folder_of("erm") != first.models.folder_of("erm")
    assert path.read_bytes() == damaged


def test_a_model_of_a_version_that_kept_no_identity_can_be_reused(tmp_path, changed):
    first, _, _ = run(tmp_path)
    folder = first.models.folder_of("erm")
    (folder / "identity.json").unlink()
    changed(train)
    _, results, events = run(tmp_path, reuse_models=True)
    assert events["model erm"]
    assert results["reused_models"] == {"erm": folder.name}
    assert not events["mi", "clean"]  # whose cells these are cannot be known
    assert all(run(tmp_path, reuse_models=True)[2].values())


def test_every_process_uses_the_model_that_the_first_one_found(tmp_path, changed):
    """Also one of a version that kept no identity, whose folder the identity does not tell."""
    first, _, _ = run(tmp_path)
    (first.models.folder_of("erm") / "identity.json").unlink()
    changed(train)
    leading = Experiment(check_spec(SPEC), tmp_path, reuse_models=True).models
    answers = []

    def lead(compute):
        answers.append(compute())
        return answers[-1]

    leading.ranks = SimpleNamespace(first=lead)
    following = Experiment(check_spec(SPEC), tmp_path, reuse_models=True).models
    following.ranks = SimpleNamespace(first=lambda _: answers[-1])
    assert leading.identity("erm") == following.identity("erm")
    assert leading.folder_of("erm") == following.folder_of("erm") == first.models.folder_of("erm")
    assert leading.reused == following.reused
