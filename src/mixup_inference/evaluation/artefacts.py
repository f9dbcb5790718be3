"""The files in which a run keeps its parts: which they are, and whether they are whole.

A name ends in the hash of the part's identity, which is everything that determines it, and
the file says the same inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixup_inference.errors import InputError
from mixup_inference.files import (
    TEMPORARY,
    fingerprint,
    read_header,
    read_sealed,
    read_tensors,
)
from mixup_inference.models import CONFIG, WEIGHTS, read_checkpoint
from mixup_inference.training import BEST, LAST

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
                return str(read_sealed(self.path)["checksum"])
            return str(read_header(self.path)["hash"])
        except (InputError, KeyError, TypeError):
            return None

    def check(self) -> None:
        """InputError, if the file is not as it was written, or not what its name says."""
        if self.kind == MODELS:
            (read_sealed if self.path.suffix == ".json" else read_checkpoint)(self.path)
        elif self.path.suffix == ".json":
            check_identity(self.path, read_sealed(self.path), self.hash)
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
