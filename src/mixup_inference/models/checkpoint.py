"""Weights on disk: one safetensors file with a JSON header, read without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.files import read_tensors, write_tensors
from mixup_inference.models.registry import create_model

FORMAT = 1
_WEIGHTS = "model."


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    *,
    extra: dict[str, Tensor] | None = None,
    **header: Any,
) -> None:
    """Write a model's weights, more tensors if wanted, and a header that says what they are."""
    tensors = {_WEIGHTS + name: tensor for name, tensor in model.state_dict().items()}
    about = {"format": FORMAT, "architecture": getattr(model, "config", None), **header}
    write_tensors(Path(path), tensors | (extra or {}), about)


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a checkpoint, in eval mode, and the checkpoint's header."""
    tensors, header = read_checkpoint(path)
    config = header.get("architecture")
    if not isinstance(config, dict):
        raise InputError(
            f"{path} does not say which architecture it holds; build the model yourself and "
            "use load_weights(model, path)."
        )
    try:
        model = create_model(**config)
    except (TypeError, InputError) as error:
        raise InputError(f"{path} names an architecture that is not here: {error}") from None
    fill_weights(model, tensors, path)
    return model.eval(), header


def load_weights(model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Fill a model that you built with a checkpoint's weights; returns the header."""
    tensors, header = read_checkpoint(path)
    fill_weights(model, tensors, path)
    return header


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a checkpoint and its header, checked to be of our format."""
    tensors, header = read_tensors(Path(path))
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {header.get('format')!r}; this version reads {FORMAT}."
        )
    return tensors, header


def fill_weights(model: nn.Module, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Put a checkpoint's weights into a model, or say where they do not fit."""
    weights = {
        name.removeprefix(_WEIGHTS): tensor
        for name, tensor in tensors.items()
        if name.startswith(_WEIGHTS)
    }
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    reshaped = [n for n in own.keys() & weights.keys() if own[n].shape != weights[n].shape]
    if missing or unexpected or reshaped:
        raise InputError(
            f"{path} does not fit the model: missing {missing or 'nothing'}, unexpected "
            f"{unexpected or 'nothing'}, of another shape {sorted(reshaped) or 'nothing'}."
        )
    model.load_state_dict(weights)
