"""Files: atomic writes, checksums, safetensors with a JSON header, safe reading of text."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixup_inference.errors import DiskFullError, InputError

#: The disk is full, the user's share of it is, or files may not become so large.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Temporary files that a killed process leaves behind.
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a temporary path, and move it to ``path`` when the block ends without an error.

    Raises DiskFullError if there is no room.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.umask(umask := os.umask(0))  # the only way to read it
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise _no_room(path, temporary, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _no_room(path: Path, temporary: Path | None, error: OSError) -> DiskFullError:
    written = temporary.stat().st_size if temporary is not None and temporary.exists() else 0
    there = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    return DiskFullError(
        f"no room for {path}: {error.strerror} after {written:,} bytes of it; {free:,} bytes "
        f"are free in {there}. The file was not kept, what was finished before it is. Make room, "
        "then give the same command again."
    )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def add_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum over the whole of a JSON document.

    >>> document = add_checksum({"a": 1})
    >>> checksum_problem(document), checksum_problem(document | {"a": 2})
    (None, 'was changed after it was written: its checksum does not match')
    """
    plain: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    plain.pop("checksum", None)
    return {**plain, "checksum": fingerprint(plain)}


def checksum_problem(document: Any) -> str | None:
    """What is wrong with a document from ``add_checksum``; None if it is as it was written."""
    if not isinstance(document, dict) or "checksum" not in document:
        return "carries no checksum"
    rest = {name: value for name, value in document.items() if name != "checksum"}
    try:
        matches = fingerprint(rest) == document["checksum"]
    except ValueError:  # NaN, which nothing of ours writes
        matches = False
    return None if matches else "was changed after it was written: its checksum does not match"


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read a JSON document with a checksum; InputError if it is not as it was written."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}).") from None
    problem = checksum_problem(document)
    if problem is not None:
        raise InputError(f"{path} {problem}.")
    return document


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as one safetensors file, atomically.

    The header gets a hash of the tensors and a checksum of its own.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 (keeps the import of the package light)
    from safetensors.torch import save_file  # noqa: PLC0415

    # Cloned, because safetensors refuses tensors that share memory (tied weights).
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    metadata = {"json": json.dumps(add_checksum({**header, "hash": _hash_named(plain)}))}
    with atomic_write(path) as temporary:
        try:
            save_file(plain, temporary, metadata=metadata)
        except SafetensorError as error:  # the system's error number is only in its message
            code = re.search(r"(?:code: |os error )(\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def expanded(path: str | Path) -> Path:
    """Expand ~ in a path; InputError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{str(path)!r} is not a usable path: {error}") from None


def is_file(path: Path) -> bool:
    """Whether there is a regular file; False for a path that cannot exist (too long, a NUL)."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for some)


def is_folder(path: Path) -> bool:
    """Whether there is a folder, likewise."""
    return os.path.isdir(path)  # noqa: PTH112


def read_text(path: Path, *, what: str, most: int) -> str:
    """The text of a regular file of at most so many bytes."""
    try:
        if not is_file(path) and path.exists():  # a pipe would be waited for
            raise OSError("it is not a regular file")
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise OSError(f"it has more than {most:,} bytes")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {what} {path}: {error}.") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML; whatever is wrong with it is one error."""
    document: dict[str, Any] = _parsed(tomllib.loads, text, "TOML", source)
    return document


def to_toml(document: Mapping[str, Any]) -> str:
    """Write TOML: plain values first, then a section for each table; without what is None.

    >>> print(to_toml({"a": 1, "b": {"c": [0.5, "x"], "d": None}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [0.5, "x"]
    """
    given = {name: value for name, value in document.items() if value is not None}
    tables = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    lines = [_toml_pair(name, given[name]) for name in given if name not in tables]
    for name, table in tables.items():
        pairs = [_toml_pair(key, value) for key, value in table.items() if value is not None]
        lines += ["", f"[{_toml_key(name)}]", *pairs]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_pair(name: str, value: Any) -> str:
    return f"{_toml_key(name)} = {toml_value(value)}"


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    """A number, string or truth value, which TOML writes like JSON, or lists and tables of them."""
    if isinstance(value, Mapping):
        pairs = (_toml_pair(key, one) for key, one in value.items() if one is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON, likewise."""
    return _parsed(json.loads, text, "JSON", source)


def _parsed(parse: Callable[[Any], Any], text: str | bytes, kind: str, source: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise InputError(f"{source} is nested too deeply.") from None
    except ValueError as error:  # also of a number with thousands of digits
        raise InputError(f"{source} is not valid {kind}: {error}.") from None


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of any safetensors file, and our JSON header (None in other people's files).

    No pickle is involved, so nothing in it can run. Tensors that do not match the hash in our
    header are refused, and so is a header that was changed.
    """
    with _opened(path) as file:
        header = _header(file)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if isinstance(header, dict):
        if header.get("hash") != _hash_named(tensors):
            raise InputError(f"{path} is damaged: its tensors do not match the hash in its header.")
        if "checksum" in header and checksum_problem(header) is not None:  # 0.1.0 wrote none
            raise InputError(f"{path} is damaged: its header does not match its checksum.")
    return tensors, header


def read_header(path: Path) -> Any:
    """Our JSON header of a safetensors file, unchecked and without reading the tensors."""
    with _opened(path) as file:
        return _header(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import safe_open  # noqa: PLC0415

    if not is_file(path):
        raise InputError(f"there is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except Exception as error:  # a damaged file can fail in any way it likes
        raise InputError(
            f"{path} is not a readable safetensors file ({error}). It may be truncated or of "
            "another format; convert it with safetensors.torch.save_file, or make it anew."
        ) from None


def _header(file: Any) -> Any:
    return json.loads((file.metadata() or {}).get("json", "null"))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote."""
    tensors, header = read_safetensors(path)
    if not isinstance(header, dict):
        raise InputError(
            f"{path} was not written by mixup-inference: it carries no header of ours. "
            "Build the model and use load_weights(model, path)."
        )
    return tensors, header


def fingerprint(value: Any) -> str:
    """A short hash of a JSON-able value; equal values, equal hashes, whatever the key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _hash_named(tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    return fingerprint([names, hash_tensors(*(tensors[name] for name in names))])


def hash_tensors(*tensors: Tensor) -> str:
    """A short hash of the tensors' types, shapes and contents."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())  # as uint8, because NumPy has no bfloat16
    return digest.hexdigest()


CHECKSUMS = "SHA256SUMS"

_LAST_LINE = "# of the lines above: "


def add_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Add the checksums of files to the list of their folder."""
    known = read_checksums(folder)
    known |= {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    lines = [f"{known[name]}  {name}\n" for name in sorted(known) if (folder / name).exists()]
    write_text(folder / CHECKSUMS, "".join([*lines, _last_line("".join(lines))]))


def read_checksums(folder: Path) -> dict[str, str]:
    """Read the checksums by file; malformed lines are skipped."""
    pairs = [line.split("  ", 1) for line in _text(folder).splitlines() if line[:1] != "#"]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def checksums_intact(folder: Path) -> bool:
    """Whether the list of checksums is as it was written, or not there at all."""
    lines, found, digest = _text(folder).rpartition(_LAST_LINE)
    intact = bool(found) and found + digest == _last_line(lines)
    return intact or not (folder / CHECKSUMS).exists()


def _text(folder: Path) -> str:
    try:
        return (folder / CHECKSUMS).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _last_line(lines: str) -> str:
    return f"{_LAST_LINE}{hashlib.sha256(lines.encode()).hexdigest()}\n"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
