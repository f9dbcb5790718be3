"""The files of CIFAR's Python layout, read without running anything that is in them.

They are pickles, and a pickle may call whatever it names. The format needs five names; each is
answered here with an inert stand-in, so that not even NumPy is called, and every other name is
refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from mixup_inference.errors import InputError

PIXELS = 3 * 32 * 32
#: The lists of labels that a file may have, in the order of the bytes in the binary layout.
LABELS = ("coarse_labels", "fine_labels", "labels")


class _Array:
    """Stands for a NumPy array: keeps its bytes."""

    raw = b""

    def __setstate__(self, state: Any) -> None:
        raw = state[-1]  # a string if Python 2 wrote it
        self.raw = raw.encode("latin-1") if isinstance(raw, str) else raw


class _Type:
    """Stands for NumPy's array and type objects, whose details do not matter here."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _new_array(*_: Any) -> _Array:
    return _Array()


def _to_bytes(text: str, _: str) -> bytes:
    return text.encode("latin-1")


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _to_bytes,  # how Python 3 writes bytes in old pickles
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Only what the format needs."""
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is never loaded")
        return _ADMITTED[module, name]


def records(content: bytes) -> bytes:
    """A batch of the Python layout as the same file of the binary layout: labels, then pixels."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        labels = [batch[name] for name in LABELS if name in batch]
        if not all(type(label) is int for column in labels for label in column):
            raise ValueError("labels that are not whole numbers")
        columns = np.array(labels, dtype=np.uint8).reshape(len(labels), -1).T
        pixels = np.frombuffer(batch["data"].raw, np.uint8).reshape(-1, PIXELS)
        return np.concatenate([columns, pixels], axis=1).tobytes()
    except Exception as error:  # a pickle can fail in any way it likes
        raise InputError(f"not a batch of CIFAR's Python layout ({error})") from None
