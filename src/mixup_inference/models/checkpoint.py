"""Weights on disk: ours (safetensors with a JSON header) and other people's, without pickle.

Ours say what they are: architecture, normalisation, recipe. Other people's are safetensors or
torch files, of which only the tensors are read, under whatever prefix and wrapper they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference import __version__
from mixup_inference.errors import InputError
from mixup_inference.models.registry import closest_model, create_model
from mixup_inference.models.torch_file import read_torch
from mixup_inference.utils import io

FORMAT = 1
WEIGHTS = "model.safetensors"  # in a folder of ours
_WEIGHTS = "model."
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")


def shipped_models() -> dict[str, Path]:
    """The trained models inside the package: name and folder."""
    place = Path(str(resources.files("mixup_inference"))) / "models" / "shipped"
    return {path.parent.name: path.parent for path in sorted(place.glob(f"*/{WEIGHTS}"))}


def weights_file(name: str | Path) -> Path:
    """The weights file of a path, a folder written by ``save_pretrained``, or a shipped model.

    The working folder takes precedence over a shipped model of the same name.
    """
    path = io.expanded(name)
    if not (io.is_file(path) or io.is_folder(path)):
        path = shipped_models().get(str(name), path)
    return path / WEIGHTS if io.is_folder(path) else path


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    *,
    extra: dict[str, Tensor] | None = None,
    half: bool = False,
    **header: Any,
) -> None:
    """Write a model's weights, perhaps further tensors, and a header that describes them.

    With ``half`` the weights take 16 bits each; loading converts them to the model's 32 bits.
    """
    tensors = {
        _WEIGHTS + name: _halved(tensor) if half and tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    about = {"format": FORMAT, "version": __version__, "architecture": config_of(model), **header}
    io.write_tensors(Path(path), tensors | (extra or {}), about)


def _halved(tensor: Tensor) -> Tensor:
    half = tensor.half()
    if not bool(half.isfinite().all()):
        raise InputError("the model has weights that 16 bits cannot hold; write it without half.")
    return half


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """The arguments that ``create_model`` built a model with; None for any other model."""
    config = getattr(model, "config", None)
    return config if isinstance(config, dict) and "num_classes" in config else None


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load a checkpoint of ours: the model in eval mode, and the header."""
    tensors, header = read_checkpoint(path)
    config = header.get("architecture")
    if not isinstance(config, dict):
        raise InputError(
            f"{path} does not say which architecture it holds; build the model yourself and "
            "use load_weights(model, path)."
        )
    weights = _below(_WEIGHTS, tensors)
    try:
        with torch.device("meta"):  # takes no memory, however large the header says it is
            empty = create_model(**config)
    except Exception as error:  # a header can say anything
        raise InputError(f"{path} names an architecture that is not here: {error}") from None
    _check_names(empty, weights, path)
    model = create_model(**config)
    _fill(model, weights, path)
    return model.eval(), header


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read all tensors of a checkpoint of ours, and its header."""
    tensors, header = io.read_tensors(Path(path))
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {header.get('format')!r}; this version reads {FORMAT}."
        )
    return tensors, header


def fill_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Load the weights of a checkpoint of ours into a model; InputError says what does not fit."""
    _fill(model, _below(_WEIGHTS, tensors), path)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill a model that you built with the weights of a file: ours, safetensors, or torch's.

    Wrappers such as ``{"state_dict": ...}`` and prefixes such as ``module.`` are recognised.
    Nothing in a torch file can run; what it holds beside tensors is passed over, with a warning.
    """
    path = weights_file(path)
    if not io.is_file(path):
        raise InputError(f"there is no file {path}.")
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    if start[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
        tensors, header = io.read_safetensors(path)
        if isinstance(header, dict) and header.get("format") == FORMAT:
            fill_weights(model, tensors, path)
            return
    else:
        tensors = read_torch(path)
    _fill(model, _as_named_in(model, tensors), path)


def _as_named_in(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip the prefix that makes most of the names match the model's, if any does.

    Tensors without that prefix (a loss's weights beside the network's) are left out.
    """
    own = model.state_dict().keys()
    found = dict(tensors)
    best = found
    while prefix := next((p for p in _PREFIXES if any(n.startswith(p) for n in found)), None):
        found = _below(prefix, found)
        if len(own & found.keys()) > len(own & best.keys()):
            best = found
    return best


def _fill(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """Load all weights into all of the model; InputError says what does not fit."""
    weights = _check_names(model, weights, path)
    own = model.state_dict()
    for name, tensor in weights.items():
        floating = tensor.is_floating_point()
        strange = tensor.is_complex() or tensor.is_quantized or tensor.is_meta
        if strange or floating != own[name].is_floating_point() or tensor.layout != torch.strided:
            raise InputError(
                f"{name} in {path} is {tensor.dtype}, {tensor.layout}, on {tensor.device}; "
                "not usable."
            )
        # As 32 bits, because not every type of 8 bits can be asked.
        values = tensor if tensor.itemsize > 1 else tensor.float()
        if floating and not bool(values.isfinite().all()):
            raise InputError(f"{name} in {path} has values that are not finite; it is broken.")
    model.load_state_dict(weights)


def _check_names(
    model: nn.Module, weights: Mapping[str, Tensor], path: str | Path
) -> dict[str, Tensor]:
    """Check that the weights have the names and shapes of the model's."""
    own = model.state_dict()
    counters = {name: own[name] for name in own if name.endswith("num_batches_tracked")}
    weights = {**counters, **weights}  # old files lack these counters, which inference ignores
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    reshaped = [n for n in own.keys() & weights.keys() if own[n].shape != weights[n].shape]
    if missing or unexpected or reshaped:
        near = closest_model(weights)
        hint = f" The weights look like those of {near!r}." if near else ""
        raise InputError(
            f"{path} does not fit the model: missing {_some(missing)}, unexpected "
            f"{_some(unexpected)}, of another shape {_some(sorted(reshaped))}.{hint}"
        )
    return weights


def _some(names: list[str]) -> str:
    """The first few names of a list, and how many there are."""
    if not names:
        return "nothing"
    return f"{names[:6]}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
