"""Runs on disk, listed, shown, verified and cleaned."""

from __future__ import annotations

import json
import shutil

import pytest

from mixup_inference.cli import app
from mixup_inference.errors import InputError
from mixup_inference.experiments import Experiment, check_spec
from mixup_inference.experiments.run_directory import Run, lock_run
from mixup_inference.reporting import write_results
from mixup_inference.utils.io import add_checksum, write_json
from specs import tiny_spec

SPEC = tiny_spec(attack={"modes": ["untargeted"]})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    results = Experiment(check_spec(SPEC), folder).run()
    write_results(results, folder)
    return folder


@pytest.fixture
def output(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    return tmp_path


@pytest.fixture
def runs(output, capsys):
    """Calls `mixup-inference runs`; what it prints."""

    def call(*arguments, code=0):
        try:
            app(["runs", *map(str, arguments), "-o", str(output)], result_action="return_value")
            ended = 0
        except SystemExit as end:
            ended = end.code
        assert ended == code
        return capsys.readouterr().out

    return call


def test_results_say_what_they_were_made_from(output):
    results = json.loads((output / "tiny" / "results.json").read_text())
    kinds = [name.split("/")[0] for name in results["artefacts"]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"models": 4, "attacks": 1, "cells": 4}
    assert None not in results["artefacts"].values()
    assert results["versions"]["mixup-inference"]
    assert results["spec"]["name"] == "tiny"


def test_a_whole_run(runs, output):
    listed = runs("list").splitlines()
    assert len(listed) == 2
    for word in ("tiny", "complete", "A tiny experiment", "kB"):
        assert word in listed[1]
    shown = runs("show", "tiny")
    for words in ("A tiny experiment", "draws = 2", "torch", "last.safetensors", "  used"):
        assert words in shown
    assert "not used" not in shown
    assert "9 parts, no problems" in runs("verify")
    assert "9 parts, no problems" in runs("verify", output / "tiny")
    assert "deleted 0 files" in runs("clean", "tiny", "--yes")


def cell(folder):
    return min(folder.glob("cells/*.json"))


def edit_a_cell(folder):
    path = cell(folder)
    document = json.loads(path.read_text())
    document["value"]["correct"] = 0
    write_json(path, document)
    return path


def edit_a_cell_and_seal_it(folder):
    path = cell(folder)
    document = json.loads(path.read_text())
    document["value"]["correct"] = -1
    write_json(path, add_checksum(document))
    return path


def swap_cells(folder):
    path, other = sorted(folder.glob("cells/*.json"))[:2]
    path.write_bytes(other.read_bytes())
    return path


def cut(pattern):
    def damage(folder):
        path = next(folder.glob(pattern))
        path.write_bytes(path.read_bytes()[:-1])
        return path

    return damage


def lose(pattern):
    def damage(folder):
        path = next(folder.glob(pattern))
        path.unlink()
        return path

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edit_a_cell, "was changed after it was written"),
        (edit_a_cell_and_seal_it, "is not the one that results.json was made from"),
        (swap_cells, "holds another result"),
        (cut("attacks/*"), "not a readable safetensors file"),
        (cut("models/*/last.safetensors"), "not a readable safetensors file"),
        (cut("models/*/model.safetensors"), "not a readable safetensors file"),
        (lose("models/*/config.json"), "is missing"),
        (cut("table.md"), "is not the file that was written"),
        (lose("table.csv"), "is missing"),
        (cut("results.json"), "is not the file that was written"),
    ],
)
def test_damage_is_found_and_named(runs, output, damage, words):
    path = damage(output / "tiny")
    said = runs("verify", "tiny", code=1)
    assert words in said
    assert path.name in said
    runs("list")
    runs("show", "tiny")


def test_results_that_were_edited(runs, output):
    path = output / "tiny" / "results.json"
    path.write_text(path.read_text().replace("A tiny", "A great"))
    assert "results.json was changed after it was written" in runs("verify", code=1)
    assert "damaged results" in runs("list")
    assert "not known" in runs("show", "tiny")
    assert "deleted 0 files" in runs("clean", "tiny", "--yes")  # who knows what is needed
    with pytest.raises(InputError, match="was changed after it was written"):
        app(["report", str(output / "tiny")], result_action="return_value")


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {
        "tiny/.lock"
    }


def test_cleaning_takes_what_nothing_needs_and_only_with_a_yes(runs, output):
    folder = output / "tiny"
    before = files(output)
    old = cell(folder).with_name("0123456789abcdef.json")  # of other settings
    write_json(old, add_checksum({"identity": 1, "value": 2}))
    model = folder / "models" / "erm-0123456789abcdef"
    shutil.copytree(next((folder / "models").iterdir()), model)
    half = folder / "cells" / ".x.json.abcd1234.tmp"
    half.write_text("half")
    theirs = [folder / "cells" / "notes.txt", folder / "mine.json", folder / ".mine.tmp"]
    for path in theirs:
        path.write_text("mine")
    outside = output / "outside.json"
    outside.write_text("not a part")
    link = folder / "cells" / "fedcba9876543210.json"
    link.symlink_to(outside)
    elsewhere = output / "elsewhere" / "erm-fedcba9876543210"
    shutil.copytree(model, elsewhere)
    (folder / "models" / elsewhere.name).symlink_to(elsewhere)
    every = files(output)
    said = runs("clean", "tiny")
    assert "would be deleted; --yes does it" in said
    for name in (old.name, half.name, "erm-0123456789abcdef", "killed", "not made from it"):
        assert name in said
    assert files(output) == every
    assert "deleted 6 files" in runs("clean", "tiny", "--yes")
    gone = {
        old,
        half,
        *(
            model / p
            for p in ("last.safetensors", "model.safetensors", "config.json", "identity.json")
        ),
    }
    assert every - files(output) == {p.relative_to(output).as_posix() for p in gone}
    assert not model.exists()
    assert before <= files(output)
    assert link.is_symlink()


def test_a_run_without_results_keeps_its_parts(runs, output):
    folder = output / "tiny"
    (folder / "results.json").unlink()
    assert "unfinished (1 models, 1 attacks, 4 cells)" in runs("list")
    edit_a_cell(folder)
    assert "deleted 1 files" in runs("clean", "tiny", "--yes")
    assert len(list(folder.glob("cells/*"))) == 3


def test_nothing_is_cleaned_while_a_command_works(runs, output):
    with lock_run(output / "tiny"):
        assert "at work" in runs("list")
        with pytest.raises(InputError, match="another process is working in"):
            runs("clean", "tiny", "--yes")
        assert "no problems" in runs("verify")


def test_there_are_no_runs(runs, output):
    shutil.rmtree(output / "tiny")
    (output / "a file").write_text("")
    (output / "a folder").mkdir()
    assert runs("list") == f"No runs in {output}.\n"
    assert runs("verify") == f"No runs in {output}.\n"
    with pytest.raises(InputError, match=r"no run 'tiny' in .* There: none"):
        runs("show", "tiny")
    with pytest.raises(InputError, match="name the runs"):
        runs("clean", "--yes")
    output.joinpath("a folder").rmdir()


def test_files_of_other_versions_are_said_to_be(output):
    run = Run(output / "tiny")
    assert run.made_by_others() is None
    run.results["versions"]["torch"] = "1.0"
    assert run.made_by_others().startswith("torch 1.0 (here ")


def test_damaged_examples_are_mended_though_no_cell_needs_them(output):
    folder = output / "tiny"
    expected = json.loads((folder / "results.json").read_text())["artefacts"]
    path = next(folder.glob("attacks/*"))
    path.write_bytes(path.read_bytes()[:-1])
    (config,) = folder.glob("models/*/config.json")
    config.unlink()
    again = Experiment(check_spec(SPEC), folder).run()
    assert again["artefacts"] == expected
    assert list(Run(folder).problems()) == []


def test_two_runs_point_by_point(runs, output):
    """Another batch size, the same labels; and one that was changed by hand is found."""
    spec = SPEC | {"name": "other", "batch_size": 7}
    folder = output / "other"
    shutil.copytree(output / "tiny" / "models", folder / "models")
    results = Experiment(check_spec(spec), folder).run()
    write_results(results, folder)
    assert "None of 80 labels differs." in runs("compare", "tiny", "other")

    cell = results["rows"][1]["cells"]["clean"]
    path = folder / cell["part"]
    document = json.loads(path.read_text())
    value = document["value"]
    assert len(value["labels"]) == 20 == cell["total"]
    assert all(margin >= 0 for margin in value["margins"])
    was = value["labels"][3]
    value["labels"][3], value["margins"][3] = (was + 1) % 10, 0.25
    write_json(path, add_checksum({k: v for k, v in document.items() if k != "checksum"}))
    said = runs("compare", "tiny", "other")
    assert f"{(was + 1) % 10} by 0.250000" in said
    assert "1 of 80 labels differs, with margins up to" in said


def test_runs_that_do_not_compare(runs, output, capsys):
    shutil.copytree(output / "tiny", output / "bare")
    (output / "bare" / "results.json").unlink()
    with pytest.raises(InputError, match="not a finished run"):
        runs("compare", "tiny", "bare")
    spec = SPEC | {"data": {"name": "digits", "test": 10}}
    shutil.copytree(output / "tiny" / "models", output / "fewer" / "models")
    write_results(Experiment(check_spec(spec), output / "fewer").run(), output / "fewer")
    with pytest.raises(InputError, match="measured other points"):
        runs("compare", "tiny", "fewer")
