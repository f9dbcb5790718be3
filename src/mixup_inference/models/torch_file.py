"""Read other people's torch files: tensors by name, with nothing in the file run or imported.

``weights_only`` admits tensors and plain containers. Whatever else a checkpoint holds beside them
(a command line's ``Namespace``, NumPy scalars) becomes an inert stand-in and is passed over. Two
more doors are closed here: a compressed archive could unpack to any size, and a tar archive, the
format of torch before 0.2, would be extracted to disk.
"""

from __future__ import annotations

import io
import pickletools
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.utils.text import plain

_ZIP = b"PK\x03\x04"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")
_CONTAINERS: Mapping[str, type] = {"collections.defaultdict": dict, "collections.deque": list}
_OLD_FORMAT_PICKLES = 4  # magic number, version, system, content


class _Stream(io.BufferedReader):
    """A file without a descriptor, so that torch does not try to read it as a tar archive."""

    def fileno(self) -> int:
        """Raise: there is none."""
        raise io.UnsupportedOperation("fileno")


def read_torch(path: Path) -> dict[str, Tensor]:
    """The state dict of a torch file, out of its wrapper if it has one."""
    passed_over: set[str] = set()
    try:
        with _Stream(io.FileIO(path)) as file:
            stand_ins = [
                (_stand_in(name, passed_over), spelling)
                for old, name in _globals(file)
                for spelling in {old, name}
            ]
            file.seek(0)
            with torch.serialization.safe_globals([*stand_ins]):
                content = torch.load(file, map_location="cpu", weights_only=True)
        tensors = _named_tensors(content, path)
    except InputError:
        raise
    except Exception:  # a damaged file can fail in any way it likes
        raise InputError(
            f"{path} is neither safetensors nor a torch file whose tensors can be read. It may be "
            "truncated, or need Python code, which is never run: save its state_dict."
        ) from None
    if passed_over:
        warnings.warn(
            f"{path} also holds Python objects, which were passed over: "
            f"{plain(', '.join(sorted(passed_over)))[:300]}.",
            MixupInferenceWarning,
            stacklevel=3,
        )
    return tensors


def _stand_in(name: str, passed_over: set[str]) -> Callable[..., Any]:
    """What takes the place of a class or function: it notes its name and does nothing."""

    class Inert:
        def __new__(cls, *_: object) -> Any:
            passed_over.add(name)
            return _CONTAINERS[name]() if name in _CONTAINERS else super().__new__(cls)

        def __init__(self, *_: object) -> None:
            pass

        def __setstate__(self, state: object) -> None:
            pass

    Inert.__name__ = name
    return Inert


def _globals(file: io.BufferedReader) -> set[tuple[str, str]]:
    """All classes and functions that the pickles ask for: their names of Python 2 and 3."""
    names = set()
    for pickled in _pickles(file):
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                today = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
                names.add((f"{module}.{name}", ".".join(today)))
    return names


def _pickles(file: io.BufferedReader) -> Iterator[IO[bytes]]:
    """The pickles in a torch file, which is a zip archive or, before torch 1.6, a row of them."""
    if file.peek(4)[:4] != _ZIP:
        yield from [file] * _OLD_FORMAT_PICKLES
        return
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # torch never compresses; an archive that does could unpack to any size.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members) or (
            sum(member.file_size for member in members) > size
        ):
            raise ValueError("it would unpack to more than it is")
        for member in members:
            if member.filename.endswith(".pkl"):
                yield io.BytesIO(archive.read(member))


def _named_tensors(content: Any, path: Path) -> dict[str, Tensor]:
    depth = 0
    while isinstance(content, Mapping) and (
        wrapper := next((w for w in _WRAPPERS if isinstance(content.get(w), Mapping)), None)
    ):
        content, depth = content[wrapper], depth + 1
        if depth > len(_WRAPPERS):
            raise InputError(f"{path} holds wrappers inside of wrappers without end.")
    if not isinstance(content, Mapping) or not content:
        seen = type(content).__name__
        raise InputError(f"{path} holds no state_dict; saw {seen}. Save the model's state_dict.")
    tensors = {
        name: value
        for name, value in content.items()
        if isinstance(value, Tensor) and isinstance(name, str)
    }
    if not tensors:
        keys = [repr(key)[:40] for key in [*content][:10]]
        raise InputError(f"{path} holds no named tensors; saw the keys {', '.join(keys)}.")
    return tensors
