"""Commands that several processes carry out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from e2e.process import ENVIRONMENT
from e2e.process import start as call
from mixup_inference.utils.io import read_tensors
from specs import DEFENDED, PLAIN, QUICK, tiny_toml

CHANGES = {
    "batch_size": 16,
    "data": {"test": 40},
    "training": QUICK | {"epochs": 3, "steps": 1},
    "models": {"iat": {"objective": "iat"}},
    "rows": [PLAIN, {"title": "Interpolated AT", "model": "iat"}],
}
SPEC = tiny_toml(**CHANGES)

MEASURED = CHANGES | {
    "rows": [*CHANGES["rows"], DEFENDED],
    "adaptive": {
        "points": 10,
        "repeats": 2,
        "checks": 0,
        "attacks": [
            {"attack": "eot-pgd", "steps": 2, "draws": 3},
            {"attack": "square", "queries": 4, "draws": 2},
        ],
    },
}


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def histories(output):
    paths = sorted((output / "tiny" / "models").glob("*/last.safetensors"))
    return {path.parent.name: read_tensors(path)[1]["history"] for path in paths}


def test_two_devices_train_what_one_trains(spec, tmp_path):
    one, two = (
        call("train", spec, "-o", tmp_path / name, *options)
        for name, options in (("one", []), ("two", ["--devices", "2"]))
    )
    for done in (one, two):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("A tiny experiment") == 1  # only the first process speaks
        assert "GLOBAL_RANK" not in done.stdout + done.stderr
        assert "2 parts computed, 0 reused" in done.stdout
    alone, together = histories(tmp_path / "one"), histories(tmp_path / "two")
    assert alone.keys() == together.keys()
    for name, history in alone.items():
        losses = [epoch["loss"] for epoch in together[name]]
        assert losses == pytest.approx([epoch["loss"] for epoch in history], rel=0.01)
    again = call("train", spec, "-o", tmp_path / "two", "--precision", "32-true")
    assert "Nothing was recomputed" in again.stdout
    mixed = call("train", spec, "-o", tmp_path / "two", "--precision", "bf16-mixed")
    assert "2 parts computed, 0 reused" in mixed.stdout
    assert "bfloat16" not in mixed.stdout + mixed.stderr  # Fabric keeps quiet
    spec.write_text(spec.read_text().replace("[training]", "[training]\nprecision = 'bf16-mixed'"))
    said = call("train", spec, "-o", tmp_path / "two")
    assert "Nothing was recomputed" in said.stdout


def torchrun(processes, *command):
    start = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [sys.executable, "-m", *start, "-m", "mixup_inference.cli", *map(str, command)],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_any_number_of_processes_measures_the_same(spec, tmp_path):
    """On the same models: counts, and every artefact's checksum."""
    spec.write_text(tiny_toml(**MEASURED))
    assert call("train", spec, "-o", tmp_path / "0").returncode == 0
    found = []
    for processes in (1, 2, 3):
        shutil.copytree(tmp_path / "0", tmp_path / str(processes))
        torchrun(processes, "evaluate", spec, "-o", tmp_path / str(processes))
        results = json.loads((tmp_path / str(processes) / "tiny" / "results.json").read_text())
        found.append({key: results[key] for key in ("rows", "adaptive", "figures")})
        names = [name.split("/")[0] for name in results["artefacts"]]
        assert {"models", "attacks", "cells"} <= set(names)
        found[-1]["checksums"] = {
            name: checksum
            for name, checksum in results["artefacts"].items()
            if name.startswith("cells")
        }
    for one in found:
        without_times(one)
    assert found[1] == found[0]
    assert found[2] == found[0]


def without_times(document):
    """Take the times out, which nothing determines."""
    if isinstance(document, dict):
        document.pop("seconds", None)
        for value in document.values():
            without_times(value)
    if isinstance(document, list):
        for value in document:
            without_times(value)


def test_a_run_under_torchrun(spec, tmp_path):
    output = tmp_path / "out"
    done = torchrun(2, "run", spec, "-o", output)
    assert done.stdout.count("A tiny experiment") == 1
    document = json.loads((output / "tiny" / "results.json").read_text())
    assert [row["title"] for row in document["rows"]] == ["Mixup", "Interpolated AT"]
    assert (output / "tiny" / "report.html").exists()
    assert not list(output.rglob("*.tmp"))


def workers_of(torchrun):
    """The processes that torchrun has started."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    return [int(child) for child in children]


def newest(folder):
    """When anything was last written to a run's folder."""
    paths = [*folder.rglob("*.json"), *folder.rglob("last.safetensors")]
    return max((path.stat().st_mtime_ns for path in paths), default=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_workers_bring_their_group_back(spec, tmp_path):
    """Six times one of two, soon after something was written; torchrun starts both again."""
    spec.write_text(tiny_toml(**MEASURED).replace("epochs = 3", "epochs = 20"))
    random = Random(0)  # noqa: S311
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=20"]
    command = ["mixup_inference.cli", "run", str(spec), "-o", str(tmp_path / "killed")]
    errors = tmp_path / "errors"  # not a pipe: nobody would empty it
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *start, "-m", *command],
            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file,
        )  # fmt: skip
    end = time.monotonic() + 600
    try:
        for _ in range(6):
            before = newest(tmp_path / "killed")
            while newest(tmp_path / "killed") == before and time.monotonic() < end:
                assert process.poll() is None, errors.read_text()
                time.sleep(0.05)
            time.sleep(random.uniform(0, 0.5))
            os.kill(random.choice(workers_of(process.pid)), signal.SIGKILL)
        assert process.wait(timeout=max(1, end - time.monotonic())) == 0, errors.read_text()
    finally:
        process.terminate()  # which ends the workers too
        process.wait()
    torchrun(2, "run", spec, "-o", tmp_path / "whole")
    killed, whole = (
        json.loads((tmp_path / name / "tiny" / "results.json").read_text())
        for name in ("killed", "whole")
    )
    assert killed["artefacts"].keys() == whole["artefacts"].keys()
    for one in (killed, whole):
        without_times(one)
    assert killed["rows"] == whole["rows"]
    assert killed["adaptive"] == whole["adaptive"]
