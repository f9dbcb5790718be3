"""One command at a time in a folder."""

from __future__ import annotations

import signal
import subprocess
import sys

import filelock
import pytest

from mixup_inference.errors import InputError
from mixup_inference.experiments.run_directory import LOCK, is_locked, lock_run

HOLD = """
import sys, time
from pathlib import Path
from mixup_inference.experiments.run_directory import lock_run
with lock_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(folder):
    with lock_run(folder):
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


def test_the_second_process_is_refused_until_the_first_has_ended(tmp_path, other):
    assert is_locked(tmp_path)
    with pytest.raises(InputError, match=f"another process is working in {tmp_path}"):
        hold(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not is_locked(tmp_path)
    hold(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [LOCK]


def test_it_is_given_back_after_an_error_and_not_taken_twice(tmp_path):
    assert not is_locked(tmp_path)
    with lock_run(tmp_path), pytest.raises(InputError, match="another process"):
        hold(tmp_path)
    with pytest.raises(ZeroDivisionError), lock_run(tmp_path):
        raise ZeroDivisionError
    hold(tmp_path)


@pytest.mark.parametrize("refusal", [OSError(37, "No locks available"), NotImplementedError()])
def test_a_file_system_without_locks(tmp_path, monkeypatch, refusal):
    """Then a file is the lock; after a crash it stays, and the message says what to do."""

    def refuse(self):
        raise refusal

    monkeypatch.setattr(filelock.FileLock, "_acquire", refuse)
    with lock_run(tmp_path), pytest.raises(InputError, match=rf"delete {tmp_path}/{LOCK}\.soft"):
        hold(tmp_path)
    hold(tmp_path)
