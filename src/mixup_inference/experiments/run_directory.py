"""Inspect run directories: list files, verify checksums, find unreferenced files; lock them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixup_inference.errors import InputError
from mixup_inference.experiments.cache import CacheFile, cache_files, leftovers
from mixup_inference.experiments.results import versions
from mixup_inference.utils import io

if TYPE_CHECKING:
    from filelock import BaseFileLock

RESULTS = "results.json"


@dataclass(frozen=True)
class Problem:
    """Something in a run's folder that is not as it should be."""

    path: Path
    message: str


@dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path

    @cached_property
    def results(self) -> dict[str, Any] | None:
        """What results.json says; None if there is none, or a damaged one."""
        try:
            return io.read_checked_json(self.folder / RESULTS)
        except InputError:
            return None

    @cached_property
    def files(self) -> list[CacheFile]:
        """The files of the cache."""
        return cache_files(self.folder)

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

    def is_used(self, file: CacheFile) -> bool | None:
        """Whether results.json was made from a part; None if that is not known."""
        return None if self.referred is None else self.name_of(file.path) in self.referred

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
                io.read_checked_json(self.folder / RESULTS)
            except InputError as error:
                yield Problem(self.folder / RESULTS, str(error))
        for name in self.missing:
            path = self.folder / name
            yield Problem(path, f"{path} is missing, though {RESULTS} was made from it.")
        for file in self.files:
            expected = (self.referred or {}).get(self.name_of(file.path))
            if (problem := file.problem) is not None:
                yield Problem(file.path, problem)
            elif expected is not None and file.checksum() != expected:
                message = f"{file.path} is not the one that {RESULTS} was made from."
                yield Problem(file.path, message)
        if not io.checksums_intact(self.folder):
            path = self.folder / io.CHECKSUMS
            yield Problem(path, f"{path} is not as it was written; what it lists is not checked.")
            return
        for name, digest in io.read_checksums(self.folder).items():
            path = self.folder / name
            if not path.is_file():
                yield Problem(path, f"{path} is missing, though it is in {io.CHECKSUMS}.")
            elif io.sha256_of(path) != digest:
                yield Problem(path, f"{path} is not the file that was written: see {io.CHECKSUMS}.")

    def unneeded(self) -> Iterator[Problem]:
        """Files of ours that are damaged, or that nothing needs; reads everything.

        Nothing that a link leads to, and nothing that was not written by us.
        """
        for path in leftovers(self.folder):
            yield Problem(path, "left by a process that was killed")
        for file in self.files:
            if file.path.resolve() != self.folder.resolve() / self.name_of(file.path):
                continue  # a link
            if file.problem is not None:
                yield Problem(file.path, "damaged")
            elif self.is_used(file) is False:
                yield Problem(file.path, f"{RESULTS} was not made from it")


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
    return folder.is_dir() and ((folder / RESULTS).is_file() or bool(cache_files(folder)))


LOCK = ".lock"


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold a run's folder; InputError if another process holds it.

    The lock ends with its process, however that ends. Where the file system has no locks, the
    presence of the file .lock.soft is one.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # noqa: PLC0415 (only commands need it)

    lock: BaseFileLock = FileLock(folder / LOCK)
    try:
        try:
            lock.acquire(blocking=False)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, Timeout):
                raise
            lock = SoftFileLock(folder / f"{LOCK}.soft")
            lock.acquire(blocking=False)
    except Timeout:
        hint = f" If none is, delete {lock.lock_file}." if isinstance(lock, SoftFileLock) else ""
        raise InputError(
            f"another process is working in {folder}. Wait for it, or give another --output.{hint}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process is working in a run's folder."""
    if not any((folder / name).exists() for name in (LOCK, f"{LOCK}.soft")):
        return False
    try:
        with lock_run(folder):
            return False
    except InputError:
        return True
