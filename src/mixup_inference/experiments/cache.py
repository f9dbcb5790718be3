"""Cache of an experiment's results in its folder: each file verified, none computed twice.

A file's name ends in the hash of the result's identity, which is everything that determines it,
and the file repeats that identity inside. Corrupted or mismatched files are computed again, with
a warning.
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
#: Beside a trained model: its identity.
IDENTITY = "identity.json"
_HASHED_NAME = re.compile(r"(?:.+-)?([0-9a-f]{16})")

T = TypeVar("T")
Identity = dict[str, Any]
Tensors = tuple[dict[str, Tensor], dict[str, Any]]  # and facts about them


@dataclass(frozen=True)
class CacheFile:
    """One file of a run's cache; ``hash`` is that of its identity."""

    path: Path
    kind: str
    hash: str

    def checksum(self) -> str | None:
        """The checksum of the contents, timings aside, as the file has it; None if damaged."""
        try:
            if self.path.suffix == ".json":
                return str(read_checked_json(self.path)["checksum"])
            return str(read_header(self.path)["hash"])
        except (InputError, KeyError, TypeError):
            return None

    def check(self) -> None:
        """Raise InputError if the file is damaged or not what its name says."""
        if self.kind == MODELS:
            (read_checked_json if self.path.suffix == ".json" else read_checkpoint)(self.path)
        elif self.path.suffix == ".json":
            check_identity(self.path, read_checked_json(self.path), self.hash)
        else:
            check_identity(self.path, read_tensors(self.path)[1], self.hash)

    @property
    def problem(self) -> str | None:
        """What ``check`` finds wrong, as a sentence; None if nothing."""
        try:
            self.check()
        except InputError as error:
            return str(error)
        return None


def check_identity(path: Path, document: dict[str, Any], expected: str) -> None:
    """Raise InputError unless a document has a checksum and the expected identity."""
    if "checksum" not in document:
        raise InputError(f"{path} carries no checksum.")
    if fingerprint(document.get("identity")) != expected:
        raise InputError(f"{path} holds another result than its name says.")


def cache_files(folder: Path) -> list[CacheFile]:
    """All files of the cache in a run's folder, by their names; other files are not ours."""
    return [
        CacheFile(path, kind, name[1])
        for kind in KINDS
        for path in sorted(_files(folder / kind, kind))
        if (name := _HASHED_NAME.fullmatch(path.parent.name if kind == MODELS else path.stem))
    ]


def _files(folder: Path, kind: str) -> Iterator[Path]:
    of_model = [f"*/{name}" for name in (LAST, BEST, WEIGHTS, CONFIG, IDENTITY)]
    for pattern in of_model if kind == MODELS else ["*.json", "*.safetensors"]:
        yield from (path for path in folder.glob(pattern) if path.is_file())


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of processes that were killed; useless while nobody works in the folder."""
    return [
        path
        for path in sorted(folder.rglob(".*.tmp"))
        if TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]


@dataclass(frozen=True)
class CacheEntry(Generic[T]):
    """A result, whether it was cached, and otherwise the seconds that it took."""

    value: T
    reused: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class TensorFile:
    """Tensors on disk, loaded one at a time, and facts about them.

    Of several processes the first one reads.
    """

    path: Path
    facts: dict[str, Any]
    ranks: Ranks = ALONE

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open  # noqa: PLC0415 (slow to import)

        def read() -> Tensor:
            with safe_open(self.path, framework="pt") as file:
                out: Tensor = file.get_tensor(name)
                return out

        return self.ranks.first(read)


class Cache:
    """The results in a run's folder, computed where they are missing.

    Of several processes the first one reads and writes. All of them ask for the same results in
    the same order, compute together what is missing, and get what the first one has.

    Args:
        folder: of the run.
        warn: called with a sentence for each result that has to be computed again.
        ranks: the processes that share the work.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None], ranks: Ranks = ALONE) -> None:
        self.folder = folder
        self.warn = warn
        self.ranks = ranks
        self._used: set[str] = set()

    def get_or_compute(
        self, kind: str, title: str, identity: Identity, compute: Callable[[], Any]
    ) -> CacheEntry[Any]:
        """A JSON value, from the folder if it is there."""

        def read(path: Path, key: str) -> Any:
            document = read_checked_json(path)
            check_identity(path, document, key)
            return document["value"]

        def make(path: Path) -> Any:
            document = add_checksum(
                {"identity": identity, "version": __version__, "value": compute()}
            )
            if self.ranks.is_first:
                write_json(path, document)
            return document["value"]

        return self._entry(self.path(kind, identity), identity, title, read, make)

    def get_or_compute_tensors(
        self, name: str, title: str, identity: Identity, compute: Callable[[], Tensors]
    ) -> CacheEntry[TensorFile]:
        """Adversarial examples and facts about them, which get the seconds that they took."""

        def read(path: Path, key: str) -> TensorFile:
            _, header = read_tensors(path)
            check_identity(path, header, key)
            return TensorFile(path, header["facts"])

        def make(path: Path) -> TensorFile:
            started = time.perf_counter()
            tensors, facts = compute()
            facts = facts | {"seconds": round(time.perf_counter() - started, 3)}
            header = {"identity": identity, "version": __version__, "facts": facts}
            if self.ranks.is_first:
                write_tensors(path, tensors, header)
            return TensorFile(path, facts)

        path = self.path("attacks", identity, name)
        entry = self._entry(path, identity, title, read, make)
        file = TensorFile(entry.value.path, entry.value.facts, self.ranks)
        return CacheEntry(file, entry.reused, entry.seconds)

    def path(self, kind: str, identity: Identity, name: str | None = None) -> Path:
        """Where a result is kept: in a JSON file, or as tensors if it has a name."""
        key = fingerprint(identity)
        return self.folder / kind / (f"{name}-{key}.safetensors" if name else f"{key}.json")

    def use(self, identity: Identity) -> None:
        """Note that what has this identity, and all that it was made from, is part of the run."""
        self._used.update(_hashes(identity))

    def used_files(self) -> dict[str, str | None]:
        """The files of all results of this run and of what they were made from; their checksums."""
        return {
            file.path.relative_to(self.folder).as_posix(): file.checksum()
            for file in cache_files(self.folder)
            if file.hash in self._used
        }

    def _entry(
        self,
        path: Path,
        identity: Identity,
        title: str,
        read: Callable[[Path, str], T],
        make: Callable[[Path], T],
    ) -> CacheEntry[T]:
        self.use(identity)

        def look() -> CacheEntry[T] | None:
            if path.exists():
                try:
                    return CacheEntry(read(path, fingerprint(identity)), reused=True)
                except InputError as error:
                    self.warn(f"{error} Computing it again: {title}.")
                except KeyError:
                    self.warn(f"{path} is of another version. Computing it again: {title}.")
            return None

        found = self.ranks.first(look)
        if found is not None:
            return found
        started = time.perf_counter()
        value = make(path)
        seconds = time.perf_counter() - started
        return self.ranks.first(lambda: CacheEntry(value, reused=False, seconds=seconds))


def _hashes(identity: Any) -> Iterator[str]:
    """The hashes of an identity and of all identities inside it: what it was made from."""
    if isinstance(identity, dict):
        yield fingerprint(identity)
    if isinstance(identity, dict | list | tuple):
        inside = identity.values() if isinstance(identity, dict) else identity
        for value in inside:
            yield from _hashes(value)
