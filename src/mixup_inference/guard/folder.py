"""A guard as a folder: weights and pool as safetensors, everything else as TOML; no pickle.

guard.toml          settings, calibration, evaluation, and the checksum of each other file
model.safetensors   the network's weights, if it is one of the registry
network.onnx        the network itself, if it is the user's own
pool.safetensors    the clean images, in 8 bits, with their labels, and what F says of some
README.md           the card
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from mixup_inference import __version__
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec.fields import Count, Table
from mixup_inference.guard.calibration import Calibration
from mixup_inference.guard.card import CARD, card, network_name
from mixup_inference.guard.evaluation import Evaluation
from mixup_inference.guard.guard import Guard, PoolCost, Stopping
from mixup_inference.guard.settings import Settings
from mixup_inference.models import WEIGHTS, load_checkpoint, save_checkpoint
from mixup_inference.models.call import dtype_of, logits_of
from mixup_inference.models.checkpoint import config_of
from mixup_inference.models.onnx_network import OnnxNetwork, export_network
from mixup_inference.pool import Pool
from mixup_inference.utils import io
from mixup_inference.validation import as_pixels

FORMAT = 1
GUARD, NETWORK, POOL = "guard.toml", "network.onnx", "pool.safetensors"

#: So many images of the pool tell whether a network is the one that the guard was made with.
TRIED = 4
#: How far its log-probabilities may be off, in another engine or with weights in 16 bits.
TOLERANCE = 0.05

#: Bytes; no guard.toml is larger.
LARGEST = 10_000_000


class NetworkRecord(Table):
    """Which network the guard was made with, and how it travels.

    ``kind``: "registry" and "onnx" are in the folder; "brought" is given to ``Guard.load``.
    """

    kind: Literal["registry", "onnx", "brought"]
    name: str
    shape: tuple[Count, Count, Count]
    class_names: tuple[str, ...]


class Document(Table):
    """What guard.toml holds."""

    format: int
    version: str
    torch: str
    settings: dict[str, Any]
    network: NetworkRecord
    pool: dict[str, str | int]
    calibration: Calibration
    pool_cost: PoolCost | None = None
    stopping: Stopping | None = None
    evaluation: Evaluation | None = None
    files: dict[str, str]


def save_guard(guard: Guard, folder: Path, *, half: bool = False) -> Path:
    """Write a guard's folder; see the top of this module."""
    if folder.exists() and not (folder / GUARD).exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no guard; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GUARD).unlink(missing_ok=True)  # until all of it is there again
    pool = guard.pool
    kind = _write_network(guard.model, pool.images[:TRIED], folder, half=half)
    tried = as_pixels(pool.images[:TRIED], dtype_of(guard.model))
    with torch.no_grad():
        outputs = torch.log_softmax(logits_of(guard.model, tried), dim=1)
    tensors = {"images": pool.images, "labels": pool.labels, "outputs": outputs}
    io.write_tensors(folder / POOL, tensors, {"classes": pool.classes})
    files = {"registry": (WEIGHTS,), "onnx": (NETWORK,), "brought": ()}[kind]
    document = Document(
        format=FORMAT,
        version=__version__,
        torch=str(torch.__version__),
        settings=guard.settings.model_dump(),
        network=NetworkRecord(
            kind=kind,
            name=network_name(guard),
            shape=tuple(pool.images.shape[1:]),
            class_names=guard.class_names,
        ),
        pool={"images": len(pool), "hash": io.hash_tensors(pool.images, pool.labels)},
        calibration=guard.calibration,
        pool_cost=guard.pool_cost,
        stopping=guard.stopping,
        evaluation=guard.evaluation,
        files={name: io.sha256_of(folder / name) for name in (*files, POOL)},
    ).model_dump(mode="json", exclude_none=True)
    io.write_text(folder / CARD, card(guard, kind))
    io.write_text(folder / GUARD, io.to_toml(io.add_checksum(document)))
    return folder


def _write_network(model: nn.Module, images: Tensor, folder: Path, *, half: bool) -> str:
    """Write the network; return how it travels."""
    if config_of(model) is not None:
        save_checkpoint(folder / WEIGHTS, model, half=half)
        return "registry"
    try:
        content = (
            model.content
            if isinstance(model, OnnxNetwork)
            else export_network(model, as_pixels(images, dtype_of(model)))
        )
    except Exception:  # an exporter can fail in any way it likes
        return "brought"
    with io.atomic_write(folder / NETWORK) as temporary:
        temporary.write_bytes(content)
    return "onnx"


def load_guard(folder: Path, model: nn.Module | None = None) -> Guard:
    """Read a guard's folder; InputError if anything in it is damaged or does not belong to it."""
    document = _read_document(folder)
    for name, digest in document.files.items():
        path = folder / Path(name).name
        if not path.is_file():
            raise InputError(f"{folder} is incomplete: there is no {path.name}.")
        if io.sha256_of(path) != digest:
            raise InputError(f"{path} is damaged, or belongs to another guard.")
    tensors, header = io.read_tensors(folder / POOL)
    try:
        settings = Settings(**document.settings)
        images, labels, outputs = (tensors[name] for name in ("images", "labels", "outputs"))
        pool = Pool(images, labels, classes=int(header["classes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder} does not hold a guard of this version: {error}.") from None
    network = _network(document.network, folder, model)
    _check_outputs(network, as_pixels(images[:TRIED]), outputs, folder)
    if isinstance(network, OnnxNetwork):  # nothing is faster than itself
        settings = settings.model_copy(update={"engine": "eager"})
    return Guard(
        network,
        pool,
        document.calibration,
        settings,
        class_names=document.network.class_names,
        pool_cost=document.pool_cost,
        stopping=document.stopping,
        evaluation=document.evaluation,
    )


def _read_document(folder: Path) -> Document:
    path = folder / GUARD
    if not io.is_file(path):
        raise InputError(f"{folder} holds no guard: there is no {GUARD}.")
    content = io.parse_toml(io.read_text(path, what="the guard", most=LARGEST), str(path))
    if content.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {content.get('format')!r}; this version reads {FORMAT}."
        )
    if (problem := io.checksum_problem(content)) is not None:
        raise InputError(
            f"{path} {problem}. To change a guard, load it, change it in Python, and save it again."
        )
    content.pop("checksum")
    try:
        return Document.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is not valid: {place}: {first['msg']}.") from None


def _network(record: NetworkRecord, folder: Path, model: nn.Module | None) -> nn.Module:
    if model is not None:
        return model.eval()
    if record.kind == "registry":
        return load_checkpoint(folder / WEIGHTS)[0]
    if record.kind == "onnx":
        return OnnxNetwork.read(folder / NETWORK)
    raise InputError(
        f"the folder does not contain the network of this guard ({record.name}): give it to "
        "Guard.load(folder, model)."
    )


def _check_outputs(model: nn.Module, x: Tensor, expected: Tensor, folder: Path) -> None:
    """Refuse a network that does not say of some images what the guard's network said."""
    with torch.no_grad():
        found = torch.log_softmax(logits_of(model, x.to(dtype_of(model))), dim=1)
    fits = found.shape == expected.shape
    if not fits or float((found.exp() - expected.exp()).abs().max()) > TOLERANCE:
        raise InputError(
            f"the network does not belong to {folder}: on the pool's first images, its predictions "
            "differ from those of the guard's network. Are the weights and the normalisation right?"
        )
