"""Runs as they lie on disk: what is there, what is whole, what nothing refers to any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixup_inference.errors import InputError
from mixup_inference.evaluation.artefacts import Artefact, artefacts_in, leftovers
from mixup_inference.evaluation.results import versions
from mixup_inference.evaluation.sums import SUMS, are_whole, read_sums, sha256_of
from mixup_inference.files import read_sealed

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
            return read_sealed(self.folder / RESULTS)
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
                read_sealed(self.folder / RESULTS)
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
        if not are_whole(self.folder):
            path = self.folder / SUMS
            yield Problem(path, f"{path} is not as it was written; what it lists is not checked.")
            return
        for name, digest in read_sums(self.folder).items():
            path = self.folder / name
            if not path.is_file():
                yield Problem(path, f"{path} is missing, though it is in {SUMS}.")
            elif sha256_of(path) != digest:
                yield Problem(path, f"{path} is not the file that was written: see {SUMS}.")

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
