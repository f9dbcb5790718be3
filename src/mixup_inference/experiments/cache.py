"""The files in which a run keeps its parts: which they are, and whether they are whole.

A name ends in the hash of the part's identity, which is everything that determines it, and
the file says the same inside.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from mixup_inference import __version__
from mixup_inference.errors import InputError
from mixup_inference.models import CONFIG, WEIGHTS, read_checkpoint
from mixup_inference.training import BEST, LAST
from mixup_inference.utils.distributed import ALONE, Ranks
from mixup_inference.utils.io import (
    TEMPORARY,
    add_checksum,
    fingerprint,
    read_checked_json,
    read_header,
    read_tensors,
    write_json,
    write_tensors,
)

MODELS = "models"

#: The folders of a run, in the order in which they are filled.
KINDS = (MODELS, "attacks", "cells", "analysis", "tuning", "adaptive")

NAME = re.compile(r"(?:.+-)?([0-9a-f]{16})")


@dataclass(frozen=True)
class Artefact:
    """One file of a run's store."""

    path: Path
    kind: str
    hash: str  # of its identity

    def checksum(self) -> str | None:
        """Of what was computed, timings aside, as the file has it; None if it is damaged."""
        try:
            if self.path.suffix == ".json":
                return str(read_checked_json(self.path)["checksum"])
            return str(read_header(self.path)["hash"])
        except (InputError, KeyError, TypeError):
            return None

    def check(self) -> None:
        """InputError, if the file is not as it was written, or not what its name says."""
        if self.kind == MODELS:
            (read_checked_json if self.path.suffix == ".json" else read_checkpoint)(self.path)
        elif self.path.suffix == ".json":
            check_identity(self.path, read_checked_json(self.path), self.hash)
        else:
            check_identity(self.path, read_tensors(self.path)[1], self.hash)

    @property
    def problem(self) -> str | None:
        """In words, what ``check`` finds wrong."""
        try:
            self.check()
        except InputError as error:
            return str(error)
        return None


def check_identity(path: Path, document: dict[str, Any], expected: str) -> None:
    """InputError, unless a document of the store has a checksum and the identity expected."""
    if "checksum" not in document:
        raise InputError(f"{path} carries no checksum.")
    if fingerprint(document.get("identity")) != expected:
        raise InputError(f"{path} holds another part than its name says.")


def artefacts_in(folder: Path) -> list[Artefact]:
    """All parts in a run's folder, by their names; whatever else lies there is not ours."""
    return [
        Artefact(path, kind, name[1])
        for kind in KINDS
        for path in sorted(_files(folder / kind, kind))
        if (name := NAME.fullmatch(path.parent.name if kind == MODELS else path.stem))
    ]


def _files(folder: Path, kind: str) -> Iterator[Path]:
    of_model = [f"*/{name}" for name in (LAST, BEST, WEIGHTS, CONFIG)]
    for pattern in of_model if kind == MODELS else ["*.json", "*.safetensors"]:
        yield from (path for path in folder.glob(pattern) if path.is_file())


def leftovers(folder: Path) -> list[Path]:
    """What writers that were killed left behind; rubbish, while nobody works in the folder."""
    return [
        path
        for path in sorted(folder.rglob(".*.tmp"))
        if TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]


T = TypeVar("T")

Identity = dict[str, Any]

Tensors = tuple[dict[str, Tensor], dict[str, Any]]  # and facts about them


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A part, and whether it was there already."""

    value: T
    reused: bool
    seconds: float = 0.0  # that it took to make


class Store:
    """The parts of a run in its folder. ``warn`` is told of each that has to be made again.

    Of several processes the first reads and writes. All of them ask for the same parts in the same
    order, make together what is not there, and have what the first has.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None], ranks: Ranks = ALONE) -> None:
        self.folder = folder
        self.warn = warn
        self.ranks = ranks
        self._asked: set[str] = set()

    def value(
        self, kind: str, what: str, identity: Identity, compute: Callable[[], Any]
    ) -> Kept[Any]:
        """A JSON value that is determined by its identity."""

        def read(path: Path, key: str) -> Any:
            document = read_checked_json(path)
            check_identity(path, document, key)
            return document["value"]

        def make(path: Path) -> Any:
            whole = {"identity": identity, "version": __version__, "value": compute()}
            document = add_checksum(whole)
            if self.ranks.is_first:
                write_json(path, document)
            return document["value"]

        return self._keep(self.path(kind, identity), identity, what, read, make)

    def tensors(
        self, name: str, what: str, identity: Identity, compute: Callable[[], Tensors]
    ) -> Kept[Tensors]:
        """Examples of an attack, and facts about them, which get the seconds that it took."""

        def read(path: Path, key: str) -> Tensors:
            tensors, header = read_tensors(path)
            check_identity(path, header, key)
            return tensors, header["facts"]

        def make(path: Path) -> Tensors:
            started = time.perf_counter()
            tensors, facts = compute()
            facts = facts | {"seconds": round(time.perf_counter() - started, 3)}
            header = {"identity": identity, "version": __version__, "facts": facts}
            if self.ranks.is_first:
                write_tensors(path, tensors, header)
            return tensors, facts

        return self._keep(self.path("attacks", identity, name), identity, what, read, make)

    def path(self, kind: str, identity: Identity, name: str | None = None) -> Path:
        """Where a part is: a JSON file, or tensors if it has a name."""
        key = fingerprint(identity)
        return self.folder / kind / (f"{name}-{key}.safetensors" if name else f"{key}.json")

    def is_damaged(self, path: Path) -> bool:
        """Whether a part is there and not as it was written."""
        found = (artefact for artefact in artefacts_in(self.folder) if artefact.path == path)
        return any(artefact.problem is not None for artefact in found)

    def artefacts(self) -> dict[str, str | None]:
        """All files that hold what was asked for or what that was made from; their checksums."""
        return {
            artefact.path.relative_to(self.folder).as_posix(): artefact.checksum()
            for artefact in artefacts_in(self.folder)
            if artefact.hash in self._asked
        }

    def _keep(
        self,
        path: Path,
        identity: Identity,
        what: str,
        read: Callable[[Path, str], T],
        make: Callable[[Path], T],
    ) -> Kept[T]:
        self._asked.update(_hashes(identity))

        def look() -> Kept[T] | None:
            if path.exists():
                try:
                    return Kept(read(path, fingerprint(identity)), reused=True)
                except InputError as error:
                    self.warn(f"{error} Making it again: {what}.")
                except KeyError:
                    self.warn(f"{path} is of another version. Making it again: {what}.")
            return None

        found = self.ranks.first(look)
        if found is not None:
            return found
        started = time.perf_counter()
        value = make(path)
        seconds = time.perf_counter() - started
        return self.ranks.first(lambda: Kept(value, reused=False, seconds=seconds))


def _hashes(identity: Any) -> Iterator[str]:
    """Of an identity, and of every identity inside it: those of what a part is made from."""
    if isinstance(identity, dict):
        yield fingerprint(identity)
    if isinstance(identity, dict | list | tuple):
        inside = identity.values() if isinstance(identity, dict) else identity
        for value in inside:
            yield from _hashes(value)
