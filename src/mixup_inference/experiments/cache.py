"""Cache of an experiment's results in its folder: each file verified, none computed twice.

A file's name ends in the hash of the result's identity, which is everything that determines it,
and the file repeats that identity inside. Corrupted or mismatched files are computed again, with
a warning.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from mixup_inference import __version__
from mixup_inference.errors import InputError
from mixup_inference.models import CONFIG, WEIGHTS, read_checkpoint
from mixup_inference.training import BEST, LAST
from mixup_inference.utils import io
from mixup_inference.utils.distributed import ALONE, Ranks

MODELS = "models"
#: The folders of a run, in the order in which they are filled.
KINDS = (MODELS, "attacks", "cells", "analysis", "tuning", "adaptive")
#: Beside a trained model: its identity.
IDENTITY = "identity.json"
_OF_MODEL = (LAST, BEST, WEIGHTS, CONFIG, IDENTITY)
_HASHED_NAME = re.compile(r"(?:.+-)?([0-9a-f]{16})")

Identity = dict[str, Any]
Compute = Callable[[], Any]
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
                return str(io.read_checked_json(self.path)["checksum"])
            return str(io.read_header(self.path)["hash"])
        except (InputError, KeyError, TypeError):
            return None

    @property
    def problem(self) -> str | None:
        """What is damaged, or not what the file's name says, as a sentence; None if nothing."""
        try:
            if self.kind != MODELS:
                read_document(self.path, self.hash)
            elif self.path.suffix == ".json":
                io.read_checked_json(self.path)
            else:
                read_checkpoint(self.path)
        except InputError as error:
            return str(error)
        return None


def read_document(path: Path, expected: str) -> dict[str, Any]:
    """Read a file of JSON, or the header of tensors, and check that its identity has this hash."""
    if path.suffix == ".json":
        document = io.read_checked_json(path)
    else:
        _, document = io.read_tensors(path)
    if "checksum" not in document:
        raise InputError(f"{path} carries no checksum.")
    if io.fingerprint(document.get("identity")) != expected:
        raise InputError(f"{path} holds another result than its name says.")
    return document


def cache_files(folder: Path) -> list[CacheFile]:
    """All files of the cache in a run's folder, by their names; other files are not ours."""
    found = []
    for kind in KINDS:
        of_model = kind == MODELS
        patterns = [f"*/{name}" for name in _OF_MODEL] if of_model else ["*.json", "*.safetensors"]
        paths = [path for pattern in patterns for path in (folder / kind).glob(pattern)]
        for path in sorted(filter(Path.is_file, paths)):
            name = _HASHED_NAME.fullmatch(path.parent.name if of_model else path.stem)
            if name is not None:
                found.append(CacheFile(path, kind, name[1]))
    return found


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of processes that were killed; useless while nobody works in the folder."""
    return [
        path
        for path in sorted(folder.rglob(".*.tmp"))
        if io.TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]


@dataclass(frozen=True)
class CacheEntry:
    """A result, whether it was cached, and otherwise the seconds that it took."""

    value: Any
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
        self, kind: str, title: str, identity: Identity, compute: Compute, name: str | None = None
    ) -> CacheEntry:
        """A result, from the folder if it is there.

        It is a JSON value. With a ``name`` for its file, ``compute`` returns tensors and facts
        about them, which come back as a ``TensorFile``; the facts get the seconds that they took.
        """
        self._used.update(_hashes(identity))
        path = self.path(kind, identity, name)
        entry = self.ranks.first(lambda: self._read(path, title, identity))
        if entry is None:
            started = time.perf_counter()
            made = compute()
            seconds = time.perf_counter() - started
            entry = self.ranks.first(lambda: self._write(path, identity, made, seconds))
        if name is None:
            return entry
        return replace(entry, value=TensorFile(path, entry.value, self.ranks))

    def path(self, kind: str, identity: Identity, name: str | None = None) -> Path:
        """Where a result is kept: in a JSON file, or as tensors if it has a name."""
        key = io.fingerprint(identity)
        return self.folder / kind / (f"{name}-{key}.safetensors" if name else f"{key}.json")

    def used_files(self) -> dict[str, str | None]:
        """The files of all results of this run and of what they were made from; their checksums."""
        return {
            file.path.relative_to(self.folder).as_posix(): file.checksum()
            for file in cache_files(self.folder)
            if file.hash in self._used
        }

    def _read(self, path: Path, title: str, identity: Identity) -> CacheEntry | None:
        """The JSON value of a file, or the facts about its tensors; None if it is of no use."""
        if not path.exists():
            return None
        try:
            document = read_document(path, io.fingerprint(identity))
            value = document["value" if path.suffix == ".json" else "facts"]
            return CacheEntry(value, reused=True)
        except InputError as error:
            self.warn(f"{error} Computing it again: {title}.")
        except KeyError:
            self.warn(f"{path} is of another version. Computing it again: {title}.")
        return None

    def _write(self, path: Path, identity: Identity, made: Any, seconds: float) -> CacheEntry:
        """Keep a JSON value, or tensors and the facts about them."""
        about = {"identity": identity, "version": __version__}
        if path.suffix == ".json":
            document = io.add_checksum(about | {"value": made})
            io.write_json(path, document)
            return CacheEntry(document["value"], reused=False, seconds=seconds)
        tensors, facts = made
        facts = facts | {"seconds": round(seconds, 3)}
        io.write_tensors(path, tensors, about | {"facts": facts})
        return CacheEntry(facts, reused=False, seconds=seconds)


def _hashes(identity: Any) -> Iterator[str]:
    """The hashes of an identity and of all identities inside it: what it was made from."""
    if isinstance(identity, dict):
        yield io.fingerprint(identity)
    if isinstance(identity, dict | list | tuple):
        inside = identity.values() if isinstance(identity, dict) else identity
        for value in inside:
            yield from _hashes(value)
