"""A run that is killed again and again ends in what it would have come to in one go."""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from e2e.process import COMMAND, ENVIRONMENT, call
from mixup_inference.utils.io import read_tensors
from specs import DEFENDED, PLAIN, QUICK, tiny_toml

SPEC = tiny_toml(
    title="A tiny experiment with everything in it",
    batch_size=20,
    data={"test": 40, "tuning": 20, "calibration": 20},
    training=QUICK | {"epochs": 2},
    models={"iat": {"objective": "iat"}},
    attack={"step": 0.025, "steps": [2, 10]},
    figures={
        "models": ["mixup"],
        "lams": [0.5],
        "points": 10,
        "pairs": 10,
        "defenses": ["gaussian"],
        "gallery": 1,
    },
    adaptive={
        "rows": ["Mixup + MI-OL"],
        "points": 10,
        "repeats": 2,
        "checks": 4,
        "gallery": 1,
        "attacks": [
            {"attack": "oblivious", "steps": 4},
            {"attack": "eot-pgd", "steps": 4, "draws": 2},
        ],
    },
    rows=[
        PLAIN,
        DEFENDED | {"lam": 0.5},
        {"title": "IAT + Gaussian noise", "model": "iat", "defense": "gaussian", "sigma": 0.1},
    ],
)
TIMES = re.compile(r"finished\s+\S+|<td data-value=\"[\d.]+\">[\d.]+</td>|<td>\d+ s</td>")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(SPEC)
    done = call("run", folder / "tiny.toml", "-o", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder


def without_times(value):
    if isinstance(value, dict):
        times = ("seconds", "timing", "checksum")
        return {k: without_times(v) for k, v in value.items() if k not in times}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def contents(folder):
    """All files of a run, without what a clock says in them."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name in (".lock", "SHA256SUMS"):
            continue
        if path.suffix == ".safetensors":
            found[name] = without_times(read_tensors(path)[1])  # with the hash of the tensors
        elif path.suffix == ".html":
            found[name] = TIMES.sub("", path.read_text())
        elif name == "results.json":
            found[name] = without_times(json.loads(path.read_text()))
        elif name == "adaptive.csv":
            found[name] = [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes()
    return found


def files_of(folder):
    return [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]


def progress(folder):
    """How far a run has come: its files, of which figures are many and quickly made."""
    return sum(0.1 if path.parent.name == "figures" else 1 for path in files_of(folder))


def stage_of(folder):
    """What was finished last: the folder of the newest file, or the file if that is in none."""
    newest = max(files_of(folder), key=lambda path: path.stat().st_mtime_ns, default=folder)
    return newest.relative_to(folder).as_posix().split("/")[0]


def run_and_kill(spec, output, *, at, delay):
    """Kill a run when it has come so far and some time has passed; the stage it was in."""
    with subprocess.Popen(
        [*COMMAND, "run", spec, "-o", output],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while progress(output / "tiny") < at and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors or "it was over before it was killed"
    return stage_of(output / "tiny")


def kill_often(whole, output, *, kills, seed):
    """Kill a run at random moments, spread over all of it, and finish it; the stages hit."""
    chance = random.Random(seed)  # noqa: S311
    total = progress(whole / "out" / "tiny") - 1
    spread = [(i + chance.random()) / kills * total for i in range(kills)]
    delays = [chance.choice((0, 0, 0.01, 0.1)) * chance.random() for _ in spread]
    stages = [
        run_and_kill(whole / "tiny.toml", output, at=at, delay=delay)
        for at, delay in zip(spread, delays, strict=True)
    ]
    done = call("run", whole / "tiny.toml", "-o", output)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout + done.stderr.replace("UserWarning", "")
    return stages


def test_a_whole_run_has_everything_and_can_be_verified(whole):
    found = contents(whole / "out" / "tiny")
    kinds = {name.split("/")[0] for name in found if "/" in name}
    assert kinds == {"models", "attacks", "cells", "analysis", "tuning", "adaptive", "figures"}
    verified = call("runs", "verify", "-o", whole / "out")
    assert verified.returncode == 0, verified.stdout
    sums = subprocess.run(
        ["sha256sum", "--quiet", "-c", "SHA256SUMS"],  # noqa: S607
        cwd=whole / "out" / "tiny", check=False,
    )  # fmt: skip
    assert sums.returncode == 0


def test_killed_five_times(whole, tmp_path):
    stages = kill_often(whole, tmp_path, kills=5, seed=0)
    assert len(set(stages)) >= 3, stages
    assert contents(tmp_path / "tiny") == contents(whole / "out" / "tiny")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_thirty_times(whole, tmp_path):
    stages = kill_often(whole, tmp_path, kills=30, seed=1)
    assert {"models", "attacks", "cells", "analysis", "adaptive", "figures"} <= set(stages)
    assert contents(tmp_path / "tiny") == contents(whole / "out" / "tiny")


def test_every_kind_of_file_damaged_by_hand(whole, tmp_path):
    """One file of each kind cut, one edited: all are made again, with a word for each part."""
    output = tmp_path / "out"
    shutil.copytree(whole / "out", output)
    folder, chance, hit = output / "tiny", random.Random(0), []  # noqa: S311
    for kind in ("models/*", "attacks", "cells", "analysis", "tuning", "adaptive", "figures", "."):
        paths = sorted(
            p
            for p in folder.glob(f"{kind}/*")
            if p.is_file()
            and p.name[0] != "."
            and p.name != "SHA256SUMS"  # without which see below
        )
        for path in chance.sample(paths, min(2, len(paths))):
            content = bytearray(path.read_bytes())
            if len(hit) % 2:
                content[len(content) // 2] ^= 1
            else:
                del content[chance.randrange(len(content)) :]
            path.write_bytes(content)
            hit.append(path)
    bad = call("runs", "verify", "tiny", "-o", output)
    assert bad.returncode == 1
    done = call("run", whole / "tiny.toml", "-o", output)
    assert done.returncode == 0, done.stderr
    for path in hit:
        assert path.name in bad.stdout
        if path.parent.parent.name == "models":  # whose files are one part
            assert path.parent.name in done.stdout
        elif path.parent.name not in ("figures", "tiny"):  # those are always written anew
            assert path.name in done.stdout
    assert contents(folder) == contents(whole / "out" / "tiny")


@pytest.mark.parametrize(
    "damage", [lambda text: text[:1000], lambda text: text.replace("a", "b", 1)]
)
def test_a_damaged_list_of_checksums(whole, tmp_path, damage):
    """It is named, and what it lists is not taken for checked; the next run writes it again."""
    shutil.copytree(whole / "out", tmp_path / "out")
    path = tmp_path / "out" / "tiny" / "SHA256SUMS"
    checked = ["sha256sum", "--check", "--strict", "--quiet", path.name]
    if shutil.which("sha256sum"):
        assert subprocess.run(checked, cwd=path.parent, check=False).returncode == 0
    path.write_text(damage(path.read_text()))
    bad = call("runs", "verify", "tiny", "-o", tmp_path / "out")
    assert bad.returncode == 1
    assert "SHA256SUMS is not as it was written" in bad.stdout
    assert call("run", whole / "tiny.toml", "-o", tmp_path / "out").returncode == 0
    assert call("runs", "verify", "tiny", "-o", tmp_path / "out").returncode == 0


def test_no_room_on_the_disk(whole, tmp_path):
    """With a limit on the size of files, which the system reports much like a full disk."""
    limit = 40_000
    command = [*COMMAND, "run", whole / "tiny.toml", "-o", tmp_path]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    assert "error: no room for " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "tiny").rglob("*.tmp"))
    assert call("runs", "verify", "-o", tmp_path).returncode == 0
    assert call(*command[len(COMMAND) :]).returncode == 0
    assert contents(tmp_path / "tiny") == contents(whole / "out" / "tiny")


def test_two_commands_in_one_folder(whole, tmp_path):
    command = ["run", whole / "tiny.toml", "-o", tmp_path]
    with subprocess.Popen(
        [*COMMAND, *map(str, command)], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as first:
        while not (tmp_path / "tiny" / ".lock").exists():
            assert first.poll() is None
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)  # it lives, and takes its time
        second = call(*command)
        first.send_signal(signal.SIGKILL)
    assert second.returncode == 2
    assert f"another process is working in {tmp_path / 'tiny'}" in second.stderr
    third = call("train", *command[1:])
    assert third.returncode == 0
