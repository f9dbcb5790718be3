"""Trained models as self-describing folders, on disk or on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mixup_inference.errors import InputError
from mixup_inference.models import checkpoint
from mixup_inference.models.checkpoint import WEIGHTS, load_checkpoint, shipped_models
from mixup_inference.utils.io import expanded, is_file, is_folder, read_checked_json, write_json

CONFIG = "config.json"


def save_pretrained(
    model: nn.Module,
    folder: str | Path,
    *,
    data: str | None = None,
    recipe: Any = None,
    clean_accuracy: Any = None,
    repo_id: str | None = None,
    half: bool = False,
    **about: Any,
) -> Path:
    """Write a model of the registry as ``model.safetensors`` and ``config.json``.

    Args:
        model: built with ``create_model``, so that it can be built again.
        folder: is made if it is not there.
        data: the name of the data set it was trained on.
        recipe: the ``Recipe`` of its training.
        clean_accuracy: as ``evaluate`` returned it, on points that it was not trained on.
        repo_id: also upload the folder to this repository of the Hugging Face hub.
        half: keep the weights in 16 bits, in half the space; measure what that does to accuracy.
        about: whatever else its users should know; JSON.
    """
    if checkpoint.config_of(model) is None:
        raise InputError(
            "only models made with create_model can be saved so that they can be built again; "
            "save your own with safetensors and load them with load_weights(model, path)."
        )
    card = {
        "objective": getattr(recipe, "objective", None),
        "data": data,
        "recipe": _plain(recipe),
        "clean_accuracy": _plain(clean_accuracy),
        **about,
    }
    card = {name: value for name, value in card.items() if value is not None}
    folder = Path(folder)
    checkpoint.save_checkpoint(folder / WEIGHTS, model, half=half, **card)
    _, header = load_checkpoint(folder / WEIGHTS)
    write_json(folder / CONFIG, header)
    if repo_id is not None:
        hub = _hub(repo_id)
        hub.create_repo(repo_id, exist_ok=True)
        hub.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=[WEIGHTS, CONFIG])
    return folder


def check_pretrained(folder: Path) -> None:
    """Raise InputError unless a folder holds all that ``save_pretrained`` wrote, unchanged."""
    _, header = checkpoint.read_checkpoint(folder / WEIGHTS)
    if read_checked_json(folder / CONFIG) != header:
        raise InputError(f"{folder / CONFIG} does not belong to {WEIGHTS} beside it.")


def from_pretrained(name: str | Path) -> nn.Module:
    """A trained model in eval mode; ``model.card`` says what it is.

    ``name`` is a model that ships with the package (``mixup-inference models list``), a folder or
    file that ``save_pretrained`` wrote, or ``user/repository`` on the Hugging Face hub. Weights are
    checked against the hash in their header, and nothing in the file can run.
    """
    place = expanded(name)
    here = is_file(place) or is_folder(place) or str(name) in shipped_models()
    path = checkpoint.weights_file(name) if here else _from_hub(str(name))
    model, header = load_checkpoint(path)
    object.__setattr__(model, "card", header)
    return model


def _from_hub(name: str) -> Path:
    first = name.partition("/")[0]
    if (
        name.count("/") != 1
        or name.startswith((".", "/", "~"))
        or Path(name).suffix in (".safetensors", ".th", ".pt", ".pth", ".ckpt", ".bin")
        or is_file(Path(first))
        or is_folder(Path(first))
    ):
        raise InputError(
            f"there is no folder or file {name}. Models that ship: {', '.join(shipped_models())}. "
            "One on the Hugging Face hub is called user/repository."
        )
    hub = _hub(name)
    try:
        return Path(hub.hf_hub_download(name, WEIGHTS))
    except Exception as error:
        raise InputError(
            f"{name} is neither a folder here nor could {WEIGHTS} be fetched from the Hugging "
            f"Face hub ({type(error).__name__}: {str(error).splitlines()[0]})."
        ) from error


def _hub(name: str) -> Any:
    try:
        import huggingface_hub  # noqa: PLC0415 (optional)
    except ImportError:
        raise InputError(
            f"{name} is not a folder here; to use the Hugging Face hub, install "
            "mixup-inference[hub]."
        ) from None
    return huggingface_hub


def _plain(value: Any) -> Any:
    """A recipe or a dataclass as a dictionary, without NaN; anything else as it is."""
    if hasattr(value, "header"):
        return value.header()
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {k: v for k, v in asdict(value).items() if v == v}  # noqa: PLR0124 (NaN is not itself)
