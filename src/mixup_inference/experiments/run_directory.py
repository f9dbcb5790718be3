"""Runs as they lie on disk: what is there, what is whole, what nothing refers to any more."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from mixup_inference.errors import InputError
from mixup_inference.experiments.cache import Artefact, artefacts_in, leftovers
from mixup_inference.experiments.results import versions
from mixup_inference.utils.io import (
    CHECKSUMS,
    checksums_intact,
    read_checked_json,
    read_checksums,
    sha256_of,
    write_json,
)

RESULTS = "results.json"


@dataclass(frozen=True)
class Problem:
    """Something in a run's folder that is not as it should be."""

    path: Path
    words: str


@dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path

    @cached_property
    def results(self) -> dict[str, Any] | None:
        """What results.json says; None if there is none, or a damaged one."""
        try:
            return read_checked_json(self.folder / RESULTS)
        except InputError:
            return None

    @cached_property
    def artefacts(self) -> list[Artefact]:
        """The parts that are there."""
        return artefacts_in(self.folder)

    @cached_property
    def referred(self) -> dict[str, str | None] | None:
        """The parts that results.json was made from, and their checksums; None if unknown."""
        listed = None if self.results is None else self.results.get("artefacts")
        return listed if isinstance(listed, dict) else None

    @property
    def missing(self) -> list[str]:
        """The parts that results.json was made from and that are not there any more."""
        return [name for name in self.referred or {} if not (self.folder / name).is_file()]

    @property
    def size(self) -> int:
        """Bytes of all files in the folder."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())

    def name_of(self, path: Path) -> str:
        """A path as results.json and SHA256SUMS have it."""
        return path.relative_to(self.folder).as_posix()

    def is_used(self, artefact: Artefact) -> bool | None:
        """Whether results.json was made from a part; None if that is not known."""
        return None if self.referred is None else self.name_of(artefact.path) in self.referred

    def made_by_others(self) -> str | None:
        """In words, which versions made results.json, if they are not the ones here."""
        if self.results is None:
            return None
        made, here = self.results["versions"], versions()
        names = [name for name in ("mixup-inference", "torch") if made.get(name) != here[name]]
        return ", ".join(f"{name} {made.get(name)} (here {here[name]})" for name in names) or None

    def problems(self) -> Iterator[Problem]:
        """All that is damaged, changed or missing; reads everything."""
        if (self.folder / RESULTS).exists():
            try:
                read_checked_json(self.folder / RESULTS)
            except InputError as error:
                yield Problem(self.folder / RESULTS, str(error))
        for name in self.missing:
            path = self.folder / name
            yield Problem(path, f"{path} is missing, though {RESULTS} was made from it.")
        for artefact in self.artefacts:
            expected = (self.referred or {}).get(self.name_of(artefact.path))
            problem = artefact.problem
            if problem is not None:
                yield Problem(artefact.path, problem)
            elif expected is not None and artefact.checksum() != expected:
                words = f"{artefact.path} is not the one that {RESULTS} was made from."
                yield Problem(artefact.path, words)
        if not checksums_intact(self.folder):
            path = self.folder / CHECKSUMS
            yield Problem(path, f"{path} is not as it was written; what it lists is not checked.")
            return
        for name, digest in read_checksums(self.folder).items():
            path = self.folder / name
            if not path.is_file():
                yield Problem(path, f"{path} is missing, though it is in {CHECKSUMS}.")
            elif sha256_of(path) != digest:
                yield Problem(path, f"{path} is not the file that was written: see {CHECKSUMS}.")

    def rubbish(self) -> Iterator[Problem]:
        """Files of ours that are damaged, or that nothing needs; reads everything.

        Nothing that a link leads to, and nothing that was not written by us.
        """
        for path in leftovers(self.folder):
            yield Problem(path, "left by a process that was killed")
        for artefact in self.artefacts:
            if artefact.path.resolve() != self.folder.resolve() / self.name_of(artefact.path):
                continue  # a link
            if artefact.problem is not None:
                yield Problem(artefact.path, "damaged")
            elif self.is_used(artefact) is False:
                yield Problem(artefact.path, f"{RESULTS} was not made from it")


def find_runs(output: Path) -> list[Run]:
    """All runs in an output folder."""
    if not output.is_dir():
        raise InputError(f"there is no folder {output}. Give the one with the runs as --output.")
    return [Run(path) for path in sorted(output.iterdir()) if _is_run(path)]


def find_run(name: str, output: Path) -> Run:
    """A run by its name in the output folder, or by its path."""
    for folder in (output / name, Path(name)):
        if _is_run(folder):
            return Run(folder)
    known = ", ".join(run.folder.name for run in find_runs(output)) if output.is_dir() else ""
    raise InputError(
        f"there is no run {name!r} in {output}, nor is that the path of one. "
        f"There: {known or 'none'}."
    )


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and ((folder / RESULTS).is_file() or bool(artefacts_in(folder)))


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
