"""The files of CIFAR's Python layout, read without running anything that is in them.

They are pickles, and a pickle may call whatever it names. The format needs five names; each is
answered here with an inert stand-in, so that not even NumPy is called, and every other name is
refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from mixup_inference.errors import InputError

PIXELS = 3 * 32 * 32
#: The lists of labels that a file may have, in the order of the bytes in the binary layout.
LABELS = ("coarse_labels", "fine_labels", "labels")
#: The instructions of a pickle that note an object under a number.
_NOTES = ("PUT", "BINPUT", "LONG_BINPUT")


class _Inert:
    """A stand-in that a pickle may make and fill, and cannot change anything with."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Nothing of it matters here."""


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
    """Knows five names, and makes its stand-ins anew for each file."""

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
        """Only what the format needs."""
        if (module, name) not in self.admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is never loaded")
        return self.admitted[module, name]


def _refuse_bomb(content: bytes) -> None:
    """Refuse numbers of notes that would make the unpickler's list of them huge."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _NOTES and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("it numbers more objects than it can hold")


def records(content: bytes) -> bytes:
    """A batch of the Python layout as the same file of the binary layout: labels, then pixels."""
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
