"""Files that are either whole or absent, and fingerprints of what made them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixup_inference.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, moved onto it when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as one safetensors file, atomically."""
    from safetensors.torch import save_file  # noqa: PLC0415 (keeps the import of the package light)

    # Cloned, because safetensors refuses tensors that share memory (tied weights).
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    whole = {**header, "hash": _hash_named(plain)}
    with replacing(path) as temporary:
        save_file(plain, temporary, metadata={"json": json.dumps(whole, allow_nan=False)})


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of any safetensors file, and our JSON header (None in other people's files).

    No pickle is involved, so nothing in it can run. Tensors that do not match the hash in our
    header are refused.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("json", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a readable safetensors file ({error}). It may be truncated or of "
            "another format; convert it with safetensors.torch.save_file, or make it anew."
        ) from None
    if isinstance(header, dict) and header.get("hash") != _hash_named(tensors):
        raise InputError(f"{path} is damaged: its tensors do not match the hash in its header.")
    return tensors, header


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
