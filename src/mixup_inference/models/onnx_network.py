"""Networks as ONNX: write any torch classifier as a file, and run such a file as a module."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError


def library(name: str) -> Any:
    """A library of the extra ``engines``; InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"this needs {name}: {error}. Run `pip install mixup-inference[engines]`."
        ) from error


@contextmanager
def quiet_export() -> Iterator[None]:
    """Silence the logs and warnings of an exporter."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def pair(x: Tensor) -> Tensor:
    """Two images: a batch of one would be taken for a fixed size."""
    return x[:1].repeat(2, 1, 1, 1)


def export_network(model: nn.Module, x: Tensor) -> bytes:
    """A classifier as an ONNX file that takes any number of images of the shape of x."""
    library("onnxscript")
    batch = torch.export.Dim("batch")
    with quiet_export():
        program = torch.onnx.export(
            model, (pair(x),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


def open_session(content: bytes | str, *, threads: int | None = None) -> Any:
    """An ONNX Runtime session on the CPU, of a file's content or its path."""
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


class OnnxNetwork(nn.Module):
    """A classifier in an ONNX file, run by ONNX Runtime on the CPU; it has no gradients."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content
        try:
            self._session = open_session(content)
        except InputError:
            raise
        except Exception as error:  # a damaged file can fail in any way it likes
            raise InputError(f"the ONNX network cannot be read: {error}") from None
        self._name = self._session.get_inputs()[0].name

    @classmethod
    def read(cls, path: Path) -> OnnxNetwork:
        """The network in a file."""
        return cls(path.read_bytes())

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        (out,) = self._session.run(None, {self._name: x.detach().contiguous().cpu().numpy()})
        return torch.from_numpy(out).to(x)
