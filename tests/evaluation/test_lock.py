"""One command at a time in a folder, and the second knows why it has to wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import filelock
import pytest

from mixup_inference.errors import InputError
from mixup_inference.experiments import run_directory
from mixup_inference.experiments.run_directory import HOLDER, LOCK, holder_of, working_in

HOLD = """
import sys, time
from pathlib import Path
from mixup_inference.experiments.run_directory import working_in
with working_in(Path(sys.argv[1]), "mixup-inference run digits"):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(folder):
    with working_in(folder, "again"):
        pass


@pytest.fixture
def other(tmp_path):
    """A process that holds the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_who_is_there_and_a_dead_one_is_recognised(tmp_path, other):
    with pytest.raises(InputError) as refused:
        hold(tmp_path)
    words = str(refused.value)
    assert f"{tmp_path} is being worked on by process {other.pid} on " in words
    assert "(mixup-inference run digits). Wait for it, or give another --output." in words
    other.send_signal(signal.SIGKILL)
    other.wait()
    left = holder_of(tmp_path)
    assert left is not None
    assert left.gone
    with working_in(tmp_path, "me") as before:
        assert before == left
        assert holder_of(tmp_path).pid == os.getpid()
        assert not holder_of(tmp_path).gone
    with working_in(tmp_path, "me") as before:
        assert before is None
    assert [p.name for p in tmp_path.iterdir()] == [LOCK]


def test_it_is_given_back_after_an_error_and_not_taken_twice(tmp_path):
    with working_in(tmp_path, "me"), pytest.raises(InputError, match=f"process {os.getpid()} on"):
        hold(tmp_path)
    with pytest.raises(ZeroDivisionError), working_in(tmp_path, "me"):
        raise ZeroDivisionError
    hold(tmp_path)


def test_a_holder_that_has_not_said_who_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "PATIENCE", 0.05)
    held = filelock.FileLock(tmp_path / LOCK)
    for words in (None, "", "{}", "[]", '{"pid": 1}'):
        if words is not None:
            (tmp_path / HOLDER).write_text(words)
        with held, pytest.raises(InputError, match="by another process"):
            hold(tmp_path)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Then the word of the holder counts, if it lives or lives elsewhere."""

    def refuse(self, **_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with working_in(tmp_path, "me"):
        me = holder_of(tmp_path)
        with pytest.raises(InputError, match=f"process {os.getpid()} on"):
            hold(tmp_path)
    reborn = replace(me, born="1")  # another process has its number by now
    elsewhere = replace(me, host="elsewhere")
    (tmp_path / HOLDER).write_text(json.dumps(asdict(reborn)))
    with working_in(tmp_path, "me") as before:
        assert before == reborn
    (tmp_path / HOLDER).write_text(json.dumps(asdict(elsewhere)))
    with pytest.raises(InputError, match=r"on elsewhere.*cannot be known from here, delete"):
        hold(tmp_path)
