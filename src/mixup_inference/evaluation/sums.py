"""SHA256SUMS: checksums of the files that a run leaves for people, as `sha256sum -c` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from mixup_inference.files import write_text

SUMS = "SHA256SUMS"


def add_sums(folder: Path, paths: Iterable[Path]) -> None:
    """Note the checksums of files in a folder, beside those that were noted before."""
    known = read_sums(folder)
    known |= {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    lines = [f"{known[name]}  {name}\n" for name in sorted(known) if (folder / name).exists()]
    write_text(folder / SUMS, "".join(lines))


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums by file; lines that make no sense are left out."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = [line.split("  ", 1) for line in text.splitlines()]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
