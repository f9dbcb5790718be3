"""Torch files of other people: tensors by name, and nothing in them runs or swells.

``weights_only`` keeps code out; pickles of other objects are refused. Beyond that, what torch
leaves open is closed here: a compressed archive could unpack to any size, and a tar archive, the
format of torch before 0.2, would be extracted to disk.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixup_inference.errors import InputError

_ZIP = b"PK\x03\x04"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")


class _Stream(io.BufferedReader):
    """A file that hides its number, without which torch does not try it as a tar archive."""

    def fileno(self) -> int:
        """None that could be had."""
        raise io.UnsupportedOperation("fileno")


def read_torch(path: Path) -> dict[str, Tensor]:
    """The state dict of a torch file, out of its wrapper if it has one."""
    try:
        with _Stream(io.FileIO(path)) as file:
            if file.read(4) == _ZIP:
                _refuse_bomb(file)
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        return _named_tensors(content, path)
    except InputError:
        raise
    except Exception:  # a damaged file can fail in any way it likes
        raise InputError(
            f"{path} is neither safetensors nor a torch file of plain tensors. It may be "
            "truncated, or hold Python objects, which are never loaded: save its state_dict."
        ) from None


def _refuse_bomb(file: io.BufferedReader) -> None:
    """Refuse an archive that unpacks to more than it is; torch never compresses."""
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members) or (
        sum(member.file_size for member in members) > size
    ):
        raise ValueError("it would unpack to more than it is")


def _named_tensors(content: Any, path: Path) -> dict[str, Tensor]:
    depth = 0
    while isinstance(content, Mapping) and (
        wrapper := next((w for w in _WRAPPERS if isinstance(content.get(w), Mapping)), None)
    ):
        content, depth = content[wrapper], depth + 1
        if depth > len(_WRAPPERS):
            raise InputError(f"{path} holds wrappers inside of wrappers without end.")
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds no state_dict; saw {type(content).__name__}.")
    tensors = {
        name: value
        for name, value in content.items()
        if isinstance(value, Tensor) and isinstance(name, str)
    }
    if not tensors:
        keys = [repr(key)[:40] for key in [*content][:10]]
        raise InputError(f"{path} holds no named tensors; saw the keys {', '.join(keys)}.")
    return tensors
