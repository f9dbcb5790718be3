"""What an experiment computes is kept under a hash of what determines it, and never redone.

Every file says what determined it (its identity), which version wrote it, and a checksum over
all that. One that was damaged, changed or put in another's place is made again, with a word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from mixup_inference.errors import InputError
from mixup_inference.evaluation.artefacts import artefacts_in, check_identity
from mixup_inference.files import (
    fingerprint,
    read_sealed,
    read_tensors,
    seal,
    write_json,
    write_tensors,
)
from mixup_inference.ranks import ALONE, Ranks
from mixup_inference.version import __version__

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
            document = read_sealed(path)
            check_identity(path, document, key)
            return document["value"]

        def make(path: Path) -> Any:
            whole = {"identity": identity, "version": __version__, "value": compute()}
            document = seal(whole)
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
