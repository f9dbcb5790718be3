"""A guard in one file that runs without this package: ONNX, or a program of ``torch.export``.

The draws are computed in the graph from the seeds, by the same hash, so that an image with its seed
has the same draws everywhere. Only early stopping is missing: all draws are made. So ``score`` is
that of all draws, ``draws`` counts them, and the decision is that of ``Guard.predict`` with
``stop=None`` or "exact".
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from mixup_inference import __version__
from mixup_inference.errors import InputError
from mixup_inference.guard.card import network_name
from mixup_inference.guard.graph import GuardGraph, block_size
from mixup_inference.guard.guard import Answer, Guard
from mixup_inference.guard.narrow import MOST
from mixup_inference.models.call import dtype_of
from mixup_inference.models.onnx_network import OnnxNetwork, library, open_session, quiet_export
from mixup_inference.validation import check_choice

Format = Literal["onnx", "torch"]
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}

#: Of the extra ``engines``.
LIBRARIES: dict[Format, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "torch": (),
}

INPUTS = ("images", "seed")
OUTPUTS = tuple(Answer.__dataclass_fields__)

#: Weights and pool of more bytes than this go into a second file beside the ONNX file.
LARGE = 100_000_000

#: How far a probability or the score may be off in another engine.
TOLERANCE = 1e-4

WARNING = (
    "An attack that knows the guard evades it: do not take an image for clean because it is not "
    "flagged."
)

Run = Callable[[Tensor, Tensor], dict[str, Tensor]]


def export_guard(
    guard: Guard,
    path: str | Path,
    format: Format | None = None,  # noqa: A002
    *,
    narrow: bool = False,
) -> Path:
    """Write a guard as one file, and check that the file answers as the guard does.

    Args:
        guard: with a network of torch.
        path: of the file; weights and pool of more than 100 MB go into a second one beside it,
            ``path`` with ``.data`` added, which must stay there.
        format: "onnx", or "torch" for ``torch.export``; by default what the suffix says, ``.onnx``
            or ``.pt2``.
        narrow: for engines that compute int64 in 32 bits, such as OpenVINO; seeds must then lie
            from 0 to 2^31 - 1. Without it they would draw something else, so every score is NaN
            there and every image flagged.
    """
    path = Path(path)
    kind = _format(path, format)
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.absolute().parent}.")
    for name in LIBRARIES[kind]:
        library(name)
    program = _program(guard, narrow=narrow)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent) as folder:
        temporary = Path(folder) / path.name
        _check(guard, WRITERS[kind](program, temporary, metadata(guard)))
        data_of(path).unlink(missing_ok=True)
        for file in sorted(temporary.parent.iterdir(), reverse=True):  # the data first
            file.replace(path.with_name(file.name))
    return path


def data_of(path: Path) -> Path:
    """The file beside an exported one that holds its weights and its pool if they are large."""
    return path.with_name(f"{path.name}.data")


def _format(path: Path, format: Format | None) -> Format:  # noqa: A002
    if format is None and path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path.name} says neither ONNX nor torch: name the file .onnx or .pt2.")
    chosen = format or SUFFIXES[path.suffix.lower()]
    return check_choice(chosen, what="format", known=get_args(Format))


def metadata(guard: Guard) -> dict[str, str]:
    """What a file says of itself."""
    return {
        "class_names": json.dumps(guard.class_names),
        "shape": "x".join(map(str, guard.pool.images.shape[1:])),
        "threshold": repr(guard.calibration.threshold),
        "draws": str(guard.settings.draws),
        "network": network_name(guard),
        "version": __version__,
        "warning": WARNING,
    }


def _program(guard: Guard, *, narrow: bool) -> torch.export.ExportedProgram:
    """The graph, traced with two images: a batch of one would be taken for a fixed size."""
    _refuse(guard, narrow=narrow)
    images = guard.pool.pixels(torch.tensor([0, 0]))
    batch = torch.export.Dim("batch")
    try:
        with quiet_export(), torch.no_grad():
            block = block_size(guard.settings.draws, images)
            graph = GuardGraph(guard.inference, block, images, narrow=narrow)
            return torch.export.export(
                graph,
                (images, torch.tensor([0, 1])),
                dynamic_shapes={name: {0: batch} for name in INPUTS},
                strict=False,
            )
    except Exception as error:  # a tracer can fail in any way it likes
        raise _failed(error) from error


def _failed(error: Exception) -> InputError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InputError(f"the network cannot be exported: {first}")


def _refuse(guard: Guard, *, narrow: bool) -> None:
    """Say in words what cannot be exported."""
    if isinstance(guard.model, OnnxNetwork):
        raise InputError(
            "the network of this guard is an ONNX file, which cannot be exported again: give the "
            "torch model to Guard.load(folder, model), and export that."
        )
    if guard.settings.control_variate:
        raise InputError(
            "a guard with control_variate=True cannot be exported: fit one without it."
        )
    if narrow and guard.settings.sampling != "independent":
        raise InputError("stratified draws need 64 bits; fit the guard with independent ones.")
    if narrow and (most := int(torch.bincount(guard.pool.labels).max())) >= MOST:
        raise InputError(
            f"the pool has {most:,} images of a class; for 32 bits it may have {MOST - 1:,}."
        )
    if (dtype := dtype_of(guard.model)) != torch.float32:
        raise InputError(f"the network's weights are {dtype}; convert it with model.float().")
    if (device := guard.pool.images.device).type != "cpu":
        raise InputError(f"the guard is on {device}; move its model and its pool to the CPU.")


def _write_torch(program: torch.export.ExportedProgram, path: Path, about: dict[str, str]) -> Run:
    torch.export.save(program, path, extra_files={"metadata.json": json.dumps(about)})
    return torch.export.load(path).module()


def _write_onnx(program: torch.export.ExportedProgram, path: Path, about: dict[str, str]) -> Run:
    try:
        with quiet_export():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                input_names=INPUTS,
                output_names=OUTPUTS,
                verbose=False,
            )
    except Exception as error:
        raise _failed(error) from error
    assert exported is not None
    library("onnx_ir.passes.common").RemoveUnusedNodesPass()(exported.model)
    exported.model.metadata_props.update(about)
    tensors = (*program.state_dict.values(), *program.tensor_constants.values())
    exported.save(path, external_data=sum(t.nbytes for t in tensors) > LARGE)
    session = open_session(str(path))

    def run(images: Tensor, seed: Tensor) -> dict[str, Tensor]:
        values = session.run(OUTPUTS, {"images": images.numpy(), "seed": seed.numpy()})
        return dict(zip(OUTPUTS, map(torch.from_numpy, values), strict=True))

    return run


WRITERS: dict[Format, Callable[..., Run]] = {"onnx": _write_onnx, "torch": _write_torch}


@torch.no_grad()
def _check(guard: Guard, run: Run) -> None:
    """Compare what a file says of some images of the pool, and of their mixtures, with Python."""
    settings = guard.settings.model_copy(update={"stop": None, "engine": "eager"})
    plain = Guard(guard.model, guard.pool, guard.calibration, settings)
    images = guard.pool.pixels(torch.linspace(0, len(guard.pool) - 1, 3).long())
    images = torch.cat([images, (images + images.roll(1, 0)) / 2])
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 12345678901])
    expected, found = plain.predict(images, seeds=seeds), run(images, seeds)
    if (problem := difference(expected, found, guard.calibration.threshold)) is not None:
        raise InputError(
            f"the exported file differs from the guard on images of the pool ({problem}), so it "
            "was not kept. Does the network compute something else when it is exported?"
        )


def difference(expected: Answer, found: dict[str, Tensor], threshold: float) -> str | None:
    """In what a file's answers differ from a guard's beyond rounding; None if in nothing."""
    for name in ("probabilities", "score"):
        off = (getattr(expected, name) - found[name]).abs().max()
        if not off <= TOLERANCE:
            return f"{name} by {float(off):.2g}"
    first, second = expected.probabilities.topk(2, dim=1).values.unbind(1)
    clear = (expected.score - threshold).abs() > TOLERANCE
    clear &= first - second > TOLERANCE
    for name in ("label", "undefended_label", "is_adversarial", "draws"):
        if not torch.equal(getattr(expected, name)[clear], found[name][clear]):
            return name
    return None
