"""One command at a time in a run's folder; whoever comes second is told who is there.

The system gives the lock back when its holder dies, however it dies, so that no lock is ever
stale. Beside it lies a file that says who the holder is.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from mixup_inference.errors import InputError
from mixup_inference.files import write_json

LOCK, HOLDER = ".lock", ".holder.json"
#: Seconds within which a holder has said who it is.
PATIENCE = 1.0


@dataclass(frozen=True)
class Holder:
    """A process that works in a folder."""

    pid: int
    born: str | None  # by the kernel's count, so that another process with its number is known
    host: str
    since: str
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since} ({self.command})"

    @property
    def gone(self) -> bool:
        """Whether it has surely ended; of another machine's processes nothing is known."""
        if self.host != platform.node() or os.name != "posix":
            return False
        try:
            os.kill(self.pid, 0)  # sends nothing
        except ProcessLookupError:
            return True
        except PermissionError:  # another user's
            pass
        return _born(self.pid) not in (None, self.born)


@contextmanager
def working_in(folder: Path, command: str) -> Iterator[Holder | None]:
    """Hold a folder; yields who was killed in it before, if somebody was.

    InputError, if somebody else holds it.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 (only commands need it)

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise _busy(folder, _wait_for_holder(folder)) from None
    except (OSError, NotImplementedError):  # a file system without locks
        other = holder_of(folder)
        if other is not None and not other.gone:
            raise _busy(folder, other) from None
    try:
        before = holder_of(folder)
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        me = Holder(os.getpid(), _born(os.getpid()), platform.node(), now, command)
        write_json(folder / HOLDER, asdict(me))
        try:
            yield before
        finally:
            (folder / HOLDER).unlink(missing_ok=True)
    finally:
        lock.release()


def holder_of(folder: Path) -> Holder | None:
    """Who said last that it works in a folder, and has not said that it finished."""
    try:
        return Holder(**json.loads((folder / HOLDER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _wait_for_holder(folder: Path) -> Holder | None:
    """Who holds the lock now; it may have taken it only just, after somebody who was killed."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        holder = holder_of(folder)
        if holder is not None and not holder.gone:
            return holder
        time.sleep(0.02)
    return None


def _busy(folder: Path, holder: Holder | None) -> InputError:
    who = holder or "another process"
    hint = ""
    if holder is not None and holder.host != platform.node():
        hint = f" If it is dead, which cannot be known from here, delete {folder / HOLDER}."
    return InputError(
        f"{folder} is being worked on by {who}. Wait for it, or give another --output.{hint}"
    )


def _born(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since boot; None where that is not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return fields.rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None
