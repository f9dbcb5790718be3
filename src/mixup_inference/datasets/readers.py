"""Hardened readers: files in a tar archive, without unpacking it to disk; CIFAR's pickles.

Python's tarfile knows links and devices, reads headers of any length into memory, and in older
versions may loop for ever on a negative size (CVE-2025-8194). A data set needs none of that: this
goes once through the archive, keeps regular files with the wanted names, and reads no more than it
is told to.
"""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

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
                found[name] = file.read(size)
                if len(found[name]) < size:
                    raise InputError("the archive is truncated")
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


PIXELS = 3 * 32 * 32

#: The lists of labels that a file may have, in the order of the bytes in the binary layout.
LABELS = ("coarse_labels", "fine_labels", "labels")

#: The opcodes that store an object in the memo.
_MEMO_OPCODES = ("PUT", "BINPUT", "LONG_BINPUT")


class _Inert:
    """An inert stand-in for a class that a pickle asks for."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""


class _Array(_Inert):
    """Stands for a NumPy array: keeps its bytes."""

    raw: Any = b""

    def __setstate__(self, state: Any) -> None:
        raw = state[-1]  # a string if Python 2 wrote it
        self.raw = raw.encode("latin-1") if isinstance(raw, str) else raw


class _Encode(_Inert):
    """Stands for the function that Python 3 writes bytes with in old pickles.

    It is called once, for the pixels; a bomb would call it again and again.
    """

    calls = 0

    def __call__(self, text: str, _: str) -> bytes:
        """The text as bytes."""
        self.calls += 1
        if self.calls > 8:
            raise pickle.UnpicklingError("it makes more bytes than a batch has")
        return text.encode("latin-1")


class _Unpickler(pickle.Unpickler):
    """Admit five names, with new stand-ins for each file."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self.admitted = {
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy._core.multiarray", "_reconstruct"): _Array,
            ("numpy", "ndarray"): _Inert,
            ("numpy", "dtype"): _Inert,
            ("_codecs", "encode"): _Encode(),
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for an admitted name."""
        if (module, name) not in self.admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is never loaded")
        return self.admitted[module, name]


def _refuse_bomb(content: bytes) -> None:
    """Refuse memo indices that would make the unpickler's memo huge."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _MEMO_OPCODES and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("it numbers more objects than it can hold")


def records(content: bytes) -> bytes:
    """Convert a batch of the Python layout to the same file of the binary layout."""
    try:
        _refuse_bomb(content)
        batch = _Unpickler(content).load()
        labels = [batch[name] for name in LABELS if name in batch]
        if not all(type(label) is int for column in labels for label in column):
            raise ValueError("labels that are not whole numbers")
        columns = np.array(labels, dtype=np.uint8).reshape(len(labels), -1).T
        pixels = np.frombuffer(batch["data"].raw, np.uint8).reshape(-1, PIXELS)
        return np.concatenate([columns, pixels], axis=1).tobytes()
    except Exception as error:  # a pickle can fail in any way it likes
        raise InputError(f"not a batch of CIFAR's Python layout ({str(error)[:200]})") from None
