"""A user's own model and data from the command line, in processes of their own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest
import torch
from PIL import Image

from e2e.process import COMMAND, ENVIRONMENT, call
from mixup_inference import save_pretrained
from mixup_inference.cli.evaluate_options import OneModel, make_spec
from mixup_inference.datasets import load_dataset
from mixup_inference.utils.io import read_tensors

FACTORY = """
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""
#: A stage, its seconds and share; images and images/s of F.
PROFILE_ROW = re.compile(r"(\S.*?) +([\d.]+) +([\d.]+)%(?: +([\d,]+) +[\d,]+)? *")
PGD = ["--eps", "0.2", "--step", "1/10", "--steps", "3", "--draws", "3", "--points", "60"]


def cells(folder):
    (path,) = folder.glob("evaluate-*/results.json")
    document = json.loads(path.read_text())
    return {row["title"]: row["cells"] for row in document["rows"]}


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return save_pretrained(trained, folder / "digits-net", data="digits")


def test_one_command_measures_a_model_bare_and_defended(saved, tmp_path):
    command = ["evaluate", "--data", "digits", "--weights", saved, "--lam", "0.5", *PGD]
    done = call(*command, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "digits has no test part" in done.stderr
    rows = cells(tmp_path)
    assert [*rows] == ["digits-net", "digits-net + mi-ol (lam 0.5)"]
    assert [*rows["digits-net"]] == ["clean", "untargeted PGD-3", "targeted PGD-3"]
    assert rows["digits-net"]["clean"]["accuracy"] > 0.9
    assert rows["digits-net"]["untargeted PGD-3"]["accuracy"] < 0.7
    again = call(*command, "-o", tmp_path)
    assert "Nothing was recomputed" in again.stdout


def test_a_profile_adds_up_and_changes_no_result(saved, tmp_path):
    command = ["evaluate", "--data", "digits", "--weights", saved, *PGD]
    plain = call(*command, "-o", tmp_path / "plain")
    done = call(*command, "-o", tmp_path / "timed", "--profile", "--quiet")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, "where the time went" in plain.stderr) == ("", False)
    assert cells(tmp_path / "timed") == cells(tmp_path / "plain")
    for path in (tmp_path / "plain").rglob("*.safetensors"):
        other = tmp_path / "timed" / path.relative_to(tmp_path / "plain")
        torch.testing.assert_close(read_tensors(other)[0], read_tensors(path)[0], rtol=0, atol=0)
    lines = done.stderr[done.stderr.index("where the time went") :].splitlines()
    rows = {match[1]: match for line in lines if (match := PROFILE_ROW.fullmatch(line))}
    assert {"F forward", "F backward, in attacks", "drawing random numbers"} < rows.keys()
    seconds = {name: float(row[2]) for name, row in rows.items()}
    total = seconds.pop("total")
    assert sum(seconds.values()) == pytest.approx(total, abs=0.005 * len(rows))
    images = int(rows["F forward"][4].replace(",", ""))
    measured = 3 * 60 * (1 + 1 + 3)  # bare, and with three draws
    crafted = 2 * 60 * 3 + 60  # two modes, three steps; the targets need the number of classes
    assert images >= measured + crafted
    assert images < measured + crafted + 600  # the model was tried first


def test_a_profile_of_what_was_stopped(saved, tmp_path):
    command = [*COMMAND, "evaluate", "--data", "digits", "--weights", saved, "--points", "50"]
    command += ["--attack", "eot-pgd", "--attack-setting", "steps=100000"]
    with subprocess.Popen(
        [*command, "-o", tmp_path, "--profile"], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("cells/*.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with:" in shown
    assert "F forward" in errors
    assert "Traceback" not in errors


def test_attacks_that_know_the_defence_side_by_side(saved, tmp_path):
    small = [
        f"--attack-setting={name}" for name in ("steps=2", "draws=2", "queries=3", "samples=2")
    ]
    command = [
        "evaluate", "--data", "digits", "--weights", saved, "--surrogate", saved, *PGD[:6],
        "--draws", "4", "--points", "12", "--attack", "adaptive", *small, "-o", tmp_path,
    ]  # fmt: skip
    done = call(*command)
    assert done.returncode == 0, done.stderr
    assert "Under adaptive attacks" in " ".join(done.stdout.split())
    (folder,) = tmp_path.glob("evaluate-*")
    adaptive = json.loads((folder / "results.json").read_text())["adaptive"]
    base, defended = adaptive["rows"]
    assert [a["attack"] for a in base["attacks"]] == [
        "oblivious", "transfer", "eot-pgd", "apgd", "square",
    ]  # fmt: skip
    assert [a["attack"] for a in defended["attacks"]] == [
        "oblivious", "transfer", "official-adaptive", "paper-adaptive", "eot-pgd", "apgd", "square",
        "frozen",
    ]  # fmt: skip
    assert adaptive["points"] == 12
    assert [check["name"] for check in defended["checks"]][:2] == [
        "the loss rises",
        "twice the steps do not help the defender",
    ]
    assert "EOT-PGD-2" in (folder / "adaptive.csv").read_text()
    assert "EOT-PGD-2" in (folder / "table.md").read_text()


def test_options_reach_the_attacks_that_have_them():
    one = OneModel(
        data="digits", model="a.b:c", attack=("apgd", "square", "adaptive"), steps=7, step="1/255",
        attack_setting=("draws=3",), points=40, checks=5,
    )  # fmt: skip
    spec = make_spec(one, None)
    found = {attack.name: attack.settings for attack in spec.adaptive.attacks}
    assert found["APGD-CE-7"] == {"draws": 3, "steps": 7}
    assert found["APGD-DLR-7"] == {"loss": "dlr", "draws": 3, "steps": 7}
    assert found["EOT-PGD-7"] == {"draws": 3, "steps": 7, "step": pytest.approx(1 / 255)}
    assert found["Square-500"] == {"draws": 3}
    assert len(found) == len(spec.adaptive.attacks) == 10  # the standard ones, and APGD-CE
    assert (spec.adaptive.points, spec.adaptive.checks, spec.attack.steps) == (40, 5, (7,))


def test_the_steps_of_pgd_reach_eps_whatever_it_is():
    for options, step in (({}, 2 / 255), ({"eps": "0.2"}, 0.05), ({"eps": "0.2", "step": "1"}, 1)):
        assert (
            make_spec(OneModel(data="digits", model="a.b:c", **options), None).attack.step == step
        )


def test_eot_pgd_comes_along_with_the_same_settings():
    one = OneModel(data="digits", model="a.b:c", attack=("apgd",), attack_setting=("steps=3",))
    spec = make_spec(one, None)
    assert [a.name for a in spec.adaptive.attacks] == ["APGD-CE-3", "EOT-PGD-3"]
    assert spec.adaptive.checks > 0
    assert spec.attack.steps == (10,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attack", "eot-pdg"], "did you mean 'eot-pgd'"),
        (["--attack", "none", "--attack", "apgd"], "none excludes"),
        (["--attack-setting", "draws=3"], "--attack adaptive"),
        (["--attack", "apgd", "--attack-setting", "querys=3"], "querys"),
        (["--attack", "apgd", "--surrogate", "x"], "--attack transfer"),
        (["--attack", "foolbox:LinfPDG"], "LinfPGD"),
        (["--attack", "transfer"], "--surrogate"),
        (["--attack", "detector-aware"], "mi-combined"),
        (["--attack", "official-adaptive", "--norm", "l2"], "linf"),
        (["--attack", "square", "--attack-setting", "steps=3"], "setting of square: 'steps'"),
        (["--attack", "adaptve"], "did you mean 'adaptive'"),
        (["--defense", "jpeg", "--setting", "quality=200"], "error: quality must be in [1, 95]"),
        (["--eps", "-1"], "error: eps: "),
        (["--points", "0"], "--points must be at least 1"),
        (["--defense", "jpeg", "--lam", "0.5"], "unknown setting of jpeg: 'lam'"),
        (["--attack", "apgd", *(2 * ["--attack-setting", "steps=3"])], "steps is given twice"),
        (["--attack", "apgd", "--attack-setting", "steps"], "--attack-setting must be name=value"),
        (["--checks", "3"], "--attack adaptive"),
    ],
)
def test_mistakes_in_attacks_are_named(saved, tmp_path, options, words):
    done = call("evaluate", "--data", "digits", "--weights", saved, *options, "-o", tmp_path / "o")
    assert done.returncode == 2, done.stdout
    assert words in done.stderr


def test_without_attack_and_defence_it_is_the_plain_accuracy(saved, tmp_path):
    command = ["evaluate", "--data", "digits", "--weights", saved / "model.safetensors"]
    done = call(*command, "--attack", "none", "--defense", "none", "--points", "50", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {title: [*row] for title, row in cells(tmp_path).items()} == {"digits-net": ["clean"]}


def test_a_factory_of_the_users_with_weights_of_theirs(tmp_path):
    (tmp_path / "their_net.py").write_text(FACTORY)
    digits = load_dataset("digits").train
    x = (digits.pixels.flatten(1) - 0.3) / 0.4
    centres = torch.stack([x[digits.labels == c].mean(0) for c in range(10)])
    state = {"1.weight": centres, "1.bias": -0.5 * centres.square().sum(1)}
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt")
    command = ["evaluate", "--data", "digits", "--model", "their_net:build", "--weights", "w.pt"]
    plain = ["--defense", "none", "--attack", "none", "--points", "500"]
    right = call(*command, "--mean", "0.3", "--std", "0.4", *plain, cwd=tmp_path)
    assert right.returncode == 0, right.stderr
    nearest = (x @ centres.T + state["1.bias"]).argmax(1)
    rows = cells(tmp_path / "runs")
    assert rows["their_net:build"]["clean"]["accuracy"] == pytest.approx(
        float((nearest == digits.labels).double().mean()), abs=0.05
    )
    assert "better than chance" not in right.stderr
    wrong = call(*command, "--mean", "-60", "--std", "0.001", *plain, cwd=tmp_path)
    assert "warning: the model classifies only" in wrong.stderr
    assert "Is the normalisation right" in wrong.stderr
    assert cells(tmp_path / "runs") != rows  # known to be another model, though its weights are not


def test_a_folder_of_images(saved, tmp_path):
    digits = load_dataset("digits").train
    for number in range(300):
        image = Image.fromarray((digits.images[number, 0] * 255).byte().numpy()).resize((16, 16))
        part, label = ("train", "test")[number % 2], str(int(digits.labels[number]))
        folder = tmp_path / "photos" / part / label
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number}.png")
    (folder / "broken.png").write_text("<html>")
    command = ["evaluate", "--data", f"folder:{tmp_path / 'photos'}", "--weights", saved, *PGD]
    done = call(*command, "-o", tmp_path / "out", "--size", "8")
    assert done.returncode == 0, done.stderr
    assert "1 of 301 image files cannot be read" in done.stderr
    assert "broken.png" in done.stderr
    assert cells(tmp_path / "out")["digits-net"]["clean"]["accuracy"] > 0.8
    wrong = call(*command, "-o", tmp_path / "out", "--size", "8", "--channels", "3")
    assert wrong.returncode == 2
    assert "does not take images of 3 channels and 8x8" in wrong.stderr
    seen = call("data", "verify", f"folder:{tmp_path / 'photos'}")
    assert "150 + 150 grey images of 16x16, 10 classes" in seen.stdout


def test_dry_run_and_smoke(tmp_path):
    plan = call("run", "digits", "--dry-run", "-o", tmp_path / "out")
    assert plan.returncode == 0, plan.stderr
    assert "Mixup + MI-OL" in plan.stdout
    assert "In all about" in plan.stdout
    assert not (tmp_path / "out").exists()
    smoke = call("run", "digits", "--smoke", "-o", tmp_path / "out")
    assert smoke.returncode == 0, smoke.stderr
    document = json.loads((tmp_path / "out" / "digits-smoke" / "results.json").read_text())
    assert document["rows"][0]["cells"]["clean"]["total"] == 32
    assert document["models"]["mixup"]["epochs"] == 1


def test_what_there_is_is_listed(tmp_path):
    done = call("data", "list", "--data-root", tmp_path)
    assert done.returncode == 0
    for words in ("digits", "embedded", "cifar100-coarse", "not here yet", str(tmp_path)):
        assert words in done.stdout
    assert call("data", "get", "digits").stdout.startswith("digits: 1,797 grey images")


def test_tuned_settings_are_kept_and_used(saved, tmp_path):
    command = ["--data", "digits", "--weights", saved, *PGD, "-o", tmp_path]
    done = call("tune", *command, "--loss", "30")
    assert done.returncode == 0, done.stderr
    assert "<- chosen" in done.stdout
    (preset,) = tmp_path.rglob("*.toml")
    assert 'defense = "mi-ol"' in preset.read_text()
    used = call("evaluate", *command, "--preset", preset)
    assert used.returncode == 0, used.stderr
    assert "digits-net + model+mi-ol" in used.stdout
    wrong = call("evaluate", *command, "--preset", preset, "--lam", "0.5")
    assert "brings its own settings" in wrong.stderr
    strict = call("tune", *command, "--loss", "-1")
    assert strict.returncode == 2
    assert "Traceback" not in strict.stderr


def test_analyze_says_whether_the_model_is_linear_enough(saved, tmp_path):
    command = ["--data", "digits", "--weights", saved, *PGD, "-o", tmp_path]
    done = call("analyze", *command)
    assert done.returncode == 0, done.stderr
    assert "linear between clean samples" in done.stdout
    assert "MI-PL 0.5" in done.stdout
    assert "low confidence" in done.stdout
    (path,) = tmp_path.rglob("analysis.json")
    found = json.loads(path.read_text())["model"]
    assert len(found["theory"]) == 2 * 2 * 9
    assert found["detection"]["scores"]


def test_reports_from_results_that_are_there(saved, tmp_path):
    for points in ("30", "40"):
        call("evaluate", "--data", "digits", "--weights", saved, "--attack", "none", "--points",
             points, "-o", tmp_path / points)  # fmt: skip
    runs = sorted(tmp_path.glob("*/evaluate-*"))
    one = call("report", runs[0])
    assert one.returncode == 0, one.stderr
    assert (runs[0] / "report.html").exists()
    both = call("report", *runs, "-o", tmp_path / "both.html")
    assert both.returncode == 0, both.stderr
    assert "digits-net" in (tmp_path / "both.html").read_text()
    wrong = call("report", tmp_path)
    assert wrong.returncode == 2
    assert "finished run" in wrong.stderr
