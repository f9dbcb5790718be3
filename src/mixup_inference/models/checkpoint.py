"""Weights on disk: ours (safetensors with a JSON header) and other people's, without pickle.

Ours say what they are: architecture, normalisation, recipe. Other people's are safetensors or
torch files, read with ``weights_only``, under whatever prefix and wrapper they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.files import read_safetensors, read_tensors, write_tensors
from mixup_inference.models.registry import closest_model, create_model
from mixup_inference.version import __version__

FORMAT = 1
WEIGHTS = "model.safetensors"  # in a folder of ours
_WEIGHTS = "model."
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")


def weights_file(path: str | Path) -> Path:
    """The file with the weights: the path itself, or what a folder of ours calls it."""
    path = Path(path).expanduser()
    return path / WEIGHTS if path.is_dir() else path


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    *,
    extra: dict[str, Tensor] | None = None,
    **header: Any,
) -> None:
    """Write a model's weights, more tensors if wanted, and a header that says what they are."""
    tensors = {_WEIGHTS + name: tensor for name, tensor in model.state_dict().items()}
    about = {
        "format": FORMAT,
        "version": __version__,
        "architecture": config_of(model),
        **header,
    }
    write_tensors(Path(path), tensors | (extra or {}), about)


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """What ``create_model`` noted on a model of ours; other people's ``config`` is not that."""
    config = getattr(model, "config", None)
    return config if isinstance(config, dict) and "num_classes" in config else None


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a checkpoint of ours, in eval mode, and the checkpoint's header."""
    tensors, header = read_checkpoint(path)
    config = header.get("architecture")
    if not isinstance(config, dict):
        raise InputError(
            f"{path} does not say which architecture it holds; build the model yourself and "
            "use load_weights(model, path)."
        )
    try:
        model = create_model(**config)
    except Exception as error:  # a header can say anything
        raise InputError(f"{path} names an architecture that is not here: {error}") from None
    fill_weights(model, tensors, path)
    return model.eval(), header


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a checkpoint of ours and its header."""
    tensors, header = read_tensors(Path(path))
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {header.get('format')!r}; this version reads {FORMAT}."
        )
    return tensors, header


def fill_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Put the weights of a checkpoint of ours into a model, or say where they do not fit."""
    weights = {
        name.removeprefix(_WEIGHTS): tensor
        for name, tensor in tensors.items()
        if name.startswith(_WEIGHTS)
    }
    _fill(model, weights, path)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill a model that you built with the weights of a file: ours, safetensors, or torch's.

    Wrappers such as ``{"state_dict": ...}`` and prefixes such as ``module.`` are recognised. A
    torch file is read with ``weights_only``: nothing in it can run.
    """
    path = weights_file(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
        tensors, header = read_safetensors(path)
        if isinstance(header, dict) and header.get("format") == FORMAT:
            fill_weights(model, tensors, path)
            return
    else:
        tensors = _read_torch(path)
    _fill(model, _as_named_in(model, tensors), path)


def _read_torch(path: Path) -> dict[str, Tensor]:
    """The state dict of a torch file, out of its wrapper if it has one."""
    try:
        with path.open("rb") as file:  # opened here, because torch also judges by the name
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file can fail in any way it likes
        raise InputError(
            f"{path} is neither safetensors nor a torch file of plain tensors. It may be "
            "truncated, or hold Python objects, which are never loaded: save its state_dict."
        ) from None
    while isinstance(content, Mapping) and (
        wrapper := next((w for w in _WRAPPERS if isinstance(content.get(w), Mapping)), None)
    ):
        content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds no state_dict; saw {type(content).__name__}.")
    tensors = {
        name: value
        for name, value in content.items()
        if isinstance(value, Tensor) and isinstance(name, str)
    }
    if not tensors:
        raise InputError(f"{path} holds no named tensors; saw the keys {[*content][:10]}.")
    return tensors


def _as_named_in(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that fit the model best: as they are, or without a prefix.

    What does not have the prefix (a loss's weights beside the network's) is left out, if the
    model is complete without it.
    """
    own = model.state_dict().keys()
    found = dict(tensors)
    best = found
    while prefix := next((p for p in _PREFIXES if any(n.startswith(p) for n in found)), None):
        found = {
            name.removeprefix(prefix): tensor
            for name, tensor in found.items()
            if name.startswith(prefix)
        }
        if len(own & found.keys()) > len(own & best.keys()):
            best = found
    return best


def _fill(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """Load the weights, all of them and into all of the model, or say where they do not fit."""
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
    for name, tensor in weights.items():
        if tensor.is_floating_point() != own[name].is_floating_point() or (
            tensor.layout != torch.strided
        ):
            raise InputError(f"{name} in {path} is {tensor.dtype}, {tensor.layout}; not usable.")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{name} in {path} has values that are not finite; it is broken.")
    model.load_state_dict(weights)


def _some(names: list[str]) -> str:
    """The first few names of a list, and how many there are."""
    if not names:
        return "nothing"
    return f"{names[:6]}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
