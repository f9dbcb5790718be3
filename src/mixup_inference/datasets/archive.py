"""Files read out of a tar archive, plain or gzipped, without unpacking it to disk.

Python's tarfile knows links and devices, reads headers of any length into memory, and in older
versions may loop for ever on a negative size (CVE-2025-8194). A data set needs none of that: this
goes once through the archive, keeps regular files with the wanted names, and reads no more than it
is told to.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mixup_inference.errors import InputError

BLOCK = 512
REGULAR = (b"0", b"\0")
GZIP = b"\x1f\x8b"

Content = IO[bytes] | gzip.GzipFile


def read_members(
    archive: Path, names: Collection[str], *, largest: int, most: int
) -> dict[str, bytes]:
    """The regular files with these names that an archive has, each of at most ``largest`` bytes.

    At most ``most`` bytes of the archive's content are looked at; the last of several files with
    one name counts, as it does when an archive is unpacked.
    """
    found: dict[str, bytes] = {}
    with _opened(archive) as file:
        for name, size, regular in _headers(file, most):
            if name in names:
                found.pop(name, None)
            if name in names and regular and size <= largest:
                found[name] = _exactly(file, size)
                file.seek(-size % BLOCK, io.SEEK_CUR)
            else:
                file.seek(size + -size % BLOCK, io.SEEK_CUR)
    return found


def first_names(archive: Path, count: int, *, most: int) -> list[str]:
    """The names of an archive's first members."""
    names = []
    with _opened(archive) as file:
        for name, size, _ in _headers(file, most):
            names.append(name)
            if len(names) == count:
                break
            file.seek(size + -size % BLOCK, io.SEEK_CUR)
    return names


@contextmanager
def _opened(archive: Path) -> Iterator[Content]:
    """The archive's content; whatever is wrong with it is one error."""
    try:
        with archive.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            if packed:
                with gzip.open(raw) as file:
                    yield file
            else:
                yield raw
    except InputError:
        raise
    except Exception as error:  # a broken archive can fail in any way it likes
        raise InputError(f"{archive} cannot be read ({error})") from None


def _headers(file: Content, most: int) -> Iterator[tuple[str, int, bool]]:
    """Name, size and whether it is a regular file, of each member.

    Whoever asks must leave the file behind the member's last block.
    """
    while file.tell() <= most:
        block = file.read(BLOCK)
        if not block.strip(b"\0"):  # the end; what follows is padding
            return
        if len(block) < BLOCK or _number(block[148:156]) != _checksum(block):
            raise InputError("the archive is damaged or not a tar archive")
        size = _number(block[124:136])
        if file.tell() + size > most:
            break
        name = block[:100].rstrip(b"\0")
        if block[257:263] == b"ustar\0" and (prefix := block[345:500].rstrip(b"\0")):
            name = prefix + b"/" + name
        yield name.decode("utf-8", "replace"), size, block[156:157] in REGULAR
    raise InputError(f"the archive holds more than {most:,} bytes")


def _checksum(block: bytes) -> int:
    """The sum of a header's bytes, with blanks where the sum itself stands."""
    return sum(block[:148]) + 8 * ord(" ") + sum(block[156:])


def _number(field: bytes) -> int:
    """A number in octal digits, as tar writes it; negative and huge ones cannot be written so."""
    text = field.strip(b"\0 ")
    if not all(digit in b"01234567" for digit in text):
        raise InputError("the archive is damaged: a size in it is no number")
    return int(text or b"0", 8)


def _exactly(file: Content, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise InputError("the archive is truncated")
    return content
