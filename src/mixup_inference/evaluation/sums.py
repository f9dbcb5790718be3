"""SHA256SUMS: checksums of the files that a run leaves for people, as `sha256sum -c` reads them.

The last line, a comment for that program, is a checksum of those before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from mixup_inference.files import write_text

SUMS = "SHA256SUMS"
_SEAL = "# of the lines above: "


def add_sums(folder: Path, paths: Iterable[Path]) -> None:
    """Note the checksums of files in a folder, beside those that were noted before."""
    known = read_sums(folder)
    known |= {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    lines = [f"{known[name]}  {name}\n" for name in sorted(known) if (folder / name).exists()]
    write_text(folder / SUMS, "".join([*lines, _seal_of("".join(lines))]))


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums by file; lines that make no sense are left out."""
    pairs = [line.split("  ", 1) for line in _text(folder).splitlines() if line[:1] != "#"]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def are_whole(folder: Path) -> bool:
    """Whether the list of checksums is as it was written, or not there at all."""
    lines, found, seal = _text(folder).rpartition(_SEAL)
    return not (folder / SUMS).exists() or (bool(found) and found + seal == _seal_of(lines))


def _text(folder: Path) -> str:
    try:
        with (folder / SUMS).open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError:
        return ""


def _seal_of(lines: str) -> str:
    return f"{_SEAL}{hashlib.sha256(lines.encode()).hexdigest()}\n"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
