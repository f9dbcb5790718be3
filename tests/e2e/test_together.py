"""Commands that several processes carry out: those that train leave the rest to the first."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from e2e.process import ENVIRONMENT, call
from mixup_inference.files import read_tensors

SPEC = """
name = "tiny"
title = "A tiny experiment"
draws = 2

[data]
name = "digits"
test = 40

[network]
name = "small_cnn"
width = 4

[training]
epochs = 3
lr = 0.1
schedule = "one-cycle"
eps = 0.1
step = 0.05
steps = 1

[models.mixup]
objective = "mixup"

[models.iat]
objective = "iat"

[attack]
eps = 0.1
step = 0.05
steps = [2]

[[rows]]
title = "Mixup"
model = "mixup"

[[rows]]
title = "Interpolated AT"
model = "iat"
"""


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
        assert "2 parts computed, 0 reused" in done.stdout
    alone, together = histories(tmp_path / "one"), histories(tmp_path / "two")
    assert alone.keys() == together.keys()
    for name, history in alone.items():
        losses = [epoch["loss"] for epoch in together[name]]
        assert losses == pytest.approx([epoch["loss"] for epoch in history], rel=0.01)
    again = call("train", spec, "-o", tmp_path / "two")
    assert "Nothing was recomputed" in again.stdout
    mixed = call("train", spec, "-o", tmp_path / "two", "--precision", "bf16-mixed")
    assert "2 parts computed, 0 reused" in mixed.stdout


def test_a_run_under_torchrun(spec, tmp_path):
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "mixup_inference.cli", "run", str(spec), "-o", str(output)],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("A tiny experiment") == 1
    document = json.loads((output / "tiny" / "results.json").read_text())
    assert [row["title"] for row in document["rows"]] == ["Mixup", "Interpolated AT"]
    assert (output / "tiny" / "report.html").exists()
    assert not list(output.rglob("*.tmp"))
