"""The command line as a user meets it, in processes of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.process import COMMAND, ENVIRONMENT, call
from mixup_inference.metrics.accuracy import from_bits
from specs import DEFENDED, PLAIN, QUICK, tiny_toml

CHANGES = {
    "draws": 3,
    "batch_size": 20,
    "data": {"test": 40, "tuning": 20},
    "training": QUICK | {"epochs": 2},
    "models": {"iat": {"objective": "iat"}},
    "attack": {"step": 0.025, "steps": [2, 30]},
    "rows": [
        PLAIN,
        DEFENDED | {"lam": 0.5},
        {"title": "Mixup + MI-Combined", "model": "mixup", "defense": "mi-combined"}
        | {"threshold": 0.0},
        {"title": "IAT + Gaussian noise", "model": "iat", "defense": "gaussian", "sigma": 0.1},
    ],
}
SPEC = tiny_toml(**CHANGES)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def results(output):
    document = json.loads((output / "tiny" / "results.json").read_text())
    for key in ("timing", "checksum"):  # which is also over the timing
        document.pop(key)
    return document


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(SPEC)
    done = call("run", folder / "tiny.toml", "--output", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out", done, results(folder / "out")


def test_every_cell_says_which_points_are_right(finished):
    cells = [cell for row in finished[2]["rows"] for cell in row["cells"].values()]
    for cell in cells:
        assert int(from_bits(cell["right"], cell["total"]).sum()) == cell["correct"]
    assert len({cell["right"] for cell in cells}) > 1


def test_run_writes_everything_and_shows_the_table(finished):
    output, done, _ = finished
    folder = output / "tiny"
    assert {p.name for p in folder.iterdir()} == {
        "attacks", "cells", "figures", "models", ".lock",
        "SHA256SUMS", "report.html", "results.json", "table.csv", "table.md",
    }  # fmt: skip
    document = results(output)
    assert [row["title"] for row in document["rows"]] == [
        "Mixup", "Mixup + MI-OL", "Mixup + MI-Combined", "IAT + Gaussian noise",
    ]  # fmt: skip
    assert document["columns"] == [
        "clean", "untargeted PGD-2", "untargeted PGD-30", "targeted PGD-2", "targeted PGD-30",
    ]  # fmt: skip
    for row in document["rows"]:
        assert row["title"] in done.stdout
        for cell in row["cells"].values():
            assert cell["total"] == 40
            assert cell["low"] <= cell["accuracy"] == cell["correct"] / 40 <= cell["high"]
    assert [round(row["passes_per_image"]) for row in document["rows"]][:2] == [1, 4]
    assert 4 <= document["rows"][2]["passes_per_image"] <= 7
    assert document["rows"][3]["passes_per_image"] == 3
    assert document["points"] == {"test": 40, "tuning": 20, "calibration": 0, "train": 1737}
    assert "\x1b[" not in done.stdout  # no bars or colours when not on a terminal
    assert not list(folder.rglob("*.tmp"))


def test_rerun_recomputes_nothing_and_says_so(finished):
    output, _, before = finished
    kept = [
        p for kind in ("models", "attacks", "cells") for p in (output / "tiny" / kind).rglob("*")
    ]
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    again = call("run", output.parent / "tiny.toml", "-o", output)
    assert again.returncode == 0
    assert "Nothing was recomputed" in again.stdout
    assert results(output) == before
    assert stamps == {p: p.stat().st_mtime_ns for p in stamps}


def test_a_change_recomputes_only_what_depends_on_it(finished, tmp_path):
    output, _, _ = finished
    changed = tmp_path / "tiny.toml"
    changed.write_text(SPEC.replace("sigma = 0.1", "sigma = 0.2"))
    done = call("run", changed, "-o", output)
    assert "5 parts computed, 21 reused" in done.stdout  # models and attacks are looked up too


def test_damaged_parts_are_made_again(finished, tmp_path):
    output, _, expected = finished
    damaged = tmp_path / "out"
    subprocess.run(["cp", "-r", output, damaged], check=True)  # noqa: S607
    cell = expected["rows"][0]["cells"]["untargeted PGD-2"]["part"]  # other tests leave cells too
    for pattern in (cell, "attacks/*", "models/*/last*"):
        path = min((damaged / "tiny").glob(pattern))
        path.write_bytes(path.read_bytes()[:100])
    for cell in (damaged / "tiny" / "cells").iterdir():
        if cell.stat().st_size > 100:
            cell.unlink()
    done = call("run", output.parent / "tiny.toml", "-o", damaged)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning") == 3
    assert results(damaged) == expected


@pytest.mark.parametrize("pattern", ["models/mixup-*/last.safetensors", "cells/*.json"])
def test_stopped_with_ctrl_c_and_resumed_equals_uninterrupted(finished, spec, tmp_path, pattern):
    output = tmp_path / "out"
    with subprocess.Popen(
        [*COMMAND, "run", spec, "-o", output], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # Whoever runs the tests in the background has SIGINT ignored; a terminal has not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while not list((output / "tiny").glob(pattern)) and time.monotonic() < deadline:
            assert process.poll() is None, "it was over before it could be stopped"
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    assert not (output / "tiny" / "results.json").exists()
    assert process.returncode == 130
    assert "continue with:" in shown
    assert f"mixup-inference run {spec}" in shown
    assert "Traceback" not in errors
    resumed = call("run", spec, "-o", output)
    assert resumed.returncode == 0, resumed.stderr
    assert results(output) == finished[2]


def test_a_deleted_or_foreign_model_is_trained_again(finished, tmp_path):
    output, _, expected = finished
    copied = tmp_path / "out"
    subprocess.run(["cp", "-r", output, copied], check=True)  # noqa: S607
    models = copied / "tiny" / "models"
    mixup, iat = (next(models.glob(f"{name}-*")) / "last.safetensors" for name in ("mixup", "iat"))
    iat.write_bytes(mixup.read_bytes())
    mixup.unlink()
    done = call("run", output.parent / "tiny.toml", "-o", copied)
    assert done.returncode == 0, done.stderr
    assert "belongs to another training" in done.stdout
    assert results(copied) == expected


def test_single_stages_build_on_each_other(finished, spec, tmp_path):
    output = tmp_path / "out"
    trained = call("train", spec, "-o", output)
    assert trained.returncode == 0
    assert not (output / "tiny" / "attacks").exists()
    assert "2 parts computed, 0 reused" in trained.stdout
    attacked = call("attack", spec, "-o", output)
    assert "4 parts computed, 2 reused" in attacked.stdout
    assert not (output / "tiny" / "cells").exists()
    measured = call("evaluate", spec, "-o", output)
    assert "20 parts computed, 6 reused" in measured.stdout
    assert not (output / "tiny" / "report.html").exists()
    assert results(output) == finished[2]


def test_an_engine_on_the_command_line(finished, spec, tmp_path):
    output = tmp_path / "out"
    subprocess.run(["cp", "-r", finished[0], output], check=True)  # noqa: S607
    done = call("evaluate", spec, "-o", output, "--engine", "folded")
    assert "20 parts computed, 6 reused" in done.stdout  # all cells; models and attacks stay
    assert results(output)["spec"]["engine"] == "folded"
    assert set(results(output)["engines"].values()) == {"folded"}
    assert set(results(output)["engines"]) == set(results(output)["trainings"])
    for row, before in zip(results(output)["rows"], finished[2]["rows"], strict=True):
        for column, cell in row["cells"].items():
            assert abs(cell["correct"] - before["cells"][column]["correct"]) <= 1  # near-ties
    assert "did you mean 'eager'" in call("evaluate", spec, "--engine", "eagre").stderr
    done = call("evaluate", spec, "-o", output, "--attack-precision", "bf16-mixed")
    assert "20 parts computed, 6 reused" in done.stdout  # models and clean cells stay
    assert results(output)["spec"]["attack"]["precision"] == "bf16-mixed"


def test_quiet_prints_nothing(finished):
    output, _, _ = finished
    done = call("run", output.parent / "tiny.toml", "-o", output, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_shows_examples_everywhere():
    top = call("--help")
    assert top.returncode == 0
    assert "mixup-inference run my-experiment.toml" in top.stdout
    for command in ("run", "train", "attack", "evaluate", "data", "data get", "data verify",
                    "runs", "runs list", "runs show", "runs verify", "runs clean"):  # fmt: skip
        assert command.split()[0] in top.stdout
        shown = call(*command.split(), "--help")
        assert f"mixup-inference {command}" in shown.stdout.split("Usage", 1)[1].split("\n", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "digit"], "did you mean 'digits'"),
        (["run", "nowhere.toml"], "cannot read the spec"),
        (["run", "digits", "--device", "gpu"], "no device 'gpu'"),
        (["run", "digits", "--outptu", "x"], "outptu"),
        (["rum"], "rum"),
        (["analyze", "digits", "--model", "nope"], "unknown model in figures: 'nope'"),
        (["analyze", "digits", "--points", "9"], "--points would be ignored"),
        (["tune", "digits", "--defense", "none"], "has no settings to tune"),
        (["tune", "digits", "--loss", "-1"], "--loss"),
        (["analyze", "--data", "digits", "--weights", "x", "--attack", "apgd"], "for `evaluate`"),
        (["report", "nowhere"], "finished run"),
        (["runs", "list"], "there is no folder runs"),
        (["runs", "show", "nowhere"], "no run 'nowhere' in runs"),
        (["runs", "show"], "RUN"),
        (["runs", "verify", "nowhere"], "no run 'nowhere' in runs"),
        (["runs", "clean"], "name the runs to clean"),
        (["runs", "clean", "..", "--yes"], "no run '..'"),
        (["data", "get", "cifar"], "did you mean 'cifar10'"),
        (["data", "verify", "cifar10", "--data-root", "."], "CIFAR-10 is not in"),
        (["data", "verify", "folder:nowhere"], "there is no folder nowhere"),
        (["evaluate", "--model", "resnet20"], "--data is needed"),
        (["evaluate", "--data", "digits"], "--model or --weights is needed"),
        (["evaluate", "digits", "--data", "digits"], "not both"),
        (["evaluate", "--data", "digits", "--model", "resnet20"], "--weights is needed"),
        (["evaluate", "--data", "digits", "--weights", "x", "--mean", "1"], "need --model"),
        (["evaluate", "--data", "digits", "--weights", "x", "--eps", "8:255"], "8:255"),
        (["evaluate", "--data", "digits", "--weights", "x", "--setting", "a"], "name=value"),
        (["evaluate", "--data", "digits", "--weights", "x", "--setting", "a=1"], "'a'"),
    ],
)
def test_bad_arguments_give_one_sentence_and_exit_code_2(tmp_path, arguments, words):
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_a_typo_in_a_spec_is_named(spec, tmp_path):
    spec.write_text(SPEC.replace("epochs = 2", "epoch = 6"))
    done = call("run", spec, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "training: unknown key 'epoch'; did you mean 'epochs'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_written(spec, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = call("run", spec, "-o", tmp_path / "file")
    assert done.returncode == 2
    assert "cannot write to the output folder" in done.stderr
    assert "--output" in done.stderr


def test_settings_that_do_not_fit_the_images_are_found_before_training(spec, tmp_path):
    spec.write_text(SPEC.replace('"gaussian"\nsigma = 0.1', '"crop-resize"\nsize = [9, 12]'))
    done = call("run", spec, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "larger than the image" in done.stderr
    assert not (tmp_path / "out" / "tiny" / "models").exists()


def test_a_file_where_a_folder_should_be(spec, tmp_path):
    (tmp_path / "out" / "tiny").mkdir(parents=True)
    (tmp_path / "out" / "tiny" / "models").write_text("in the way")
    done = call("train", spec, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_training_that_explodes(spec, tmp_path):
    spec.write_text(SPEC.replace("lr = 0.1", "lr = 1e30"))
    done = call("run", spec, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "the loss became" in done.stderr
    assert "Traceback" not in done.stderr


def test_on_a_terminal_there_are_bars(spec, tmp_path, monkeypatch):
    """Under a pseudo-terminal, long jobs show a bar and the table still comes out whole."""
    spec.write_text(SPEC.replace("epochs = 2", "epochs = 15"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    chunks = []

    def read(descriptor):
        data = os.read(descriptor, 4096)
        chunks.append(data)
        return data

    status = pty.spawn([*COMMAND, "run", str(spec), "-o", str(tmp_path / "out")], read)
    text = b"".join(chunks).decode()
    assert os.waitstatus_to_exitcode(status) == 0
    assert "train mixup" in text or "train iat" in text
    assert "accuracy" in text
    assert "Mixup + MI-Combined" in text
    assert Path(tmp_path / "out" / "tiny" / "report.html").exists()
