"""One training loop for all objectives, on Lightning Fabric, resumable to the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.checks import as_pixels, check_labels, check_stored_images
from mixup_inference.classifier import device_of, dtype_of, logits_of, unwrap
from mixup_inference.datasets import as_tensors, random_order
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError, TrainingDivergedError
from mixup_inference.files import fingerprint, hash_tensors
from mixup_inference.models import fill_weights, read_checkpoint, save_checkpoint
from mixup_inference.progress import SILENT, Progress, Task
from mixup_inference.training.augment import augment
from mixup_inference.training.objectives import ADVERSARIAL, OBJECTIVES, Batch, Examples
from mixup_inference.training.recipe import Recipe, learning_rate
from mixup_inference.training.speed import catch_up, channels_last, victim_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LAST, BEST = "last.safetensors", "best.safetensors"
_MOMENTUM = "momentum."


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to. Accuracy is on what was trained on: mixed, attacked, augmented."""

    epoch: int
    loss: float
    accuracy: float
    seconds: float
    validation_accuracy: float | None = None


def train(
    model: nn.Module,
    images: Tensor | Iterable[Any],
    labels: Tensor | Recipe | str | None = None,
    recipe: Recipe | str = "mixup",
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    folder: str | Path | None = None,
    fabric: Fabric | None = None,
    progress: Progress = SILENT,
) -> list[Epoch]:
    """Train ``model`` in place and leave it in eval mode; returns the history.

    The same seed gives the same weights. With a ``folder``, the state is written after every
    epoch (``last.safetensors``, and ``best.safetensors`` when there is validation data), and a
    later call with the same arguments goes on from there to the same result as without the
    interruption, whatever weights the model holds by then.

    Args:
        model: from NCHW images in [0, 1] to logits; the number of classes is read off its output.
        images: NCHW, uint8 or float in [0, 1]; or a Dataset of (image, label).
        labels: one integer per image; left out when ``images`` is a Dataset.
        recipe: a ``Recipe``, or the name of an objective for the paper's settings of it.
        validation: images and labels on which ``best`` is chosen.
        folder: where the state goes; None keeps nothing.
        fabric: a configured ``lightning_fabric.Fabric``, for another device or precision.
        progress: where to report.
    """
    if isinstance(labels, Recipe | str):  # train(model, dataset, recipe)
        recipe, labels = labels, None
    recipe = Recipe.of_paper(recipe) if isinstance(recipe, str) else recipe
    images, labels = as_tensors(images, labels, what="the training data")
    check_stored_images(images, what="images")
    if validation is not None:
        check_stored_images(validation[0], what="validation images")
        check_labels(validation[1], count=len(validation[0]), what="validation labels")
    fabric = fabric or _cpu_fabric()
    model = model.to(fabric.device)
    few = as_pixels(images[:8].to(fabric.device), dtype_of(model))
    classes = _count_classes(model, few)
    labels = check_labels(labels, count=images.shape[0], classes=classes, what="labels")
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    job = _Job(recipe, fabric, model, optimizer, images, labels, classes, few)
    identity = {
        "recipe": asdict(recipe),
        "data": hash_tensors(images, labels),
        "validation": None if validation is None else hash_tensors(*validation),
        "weights": fingerprint({n: list(t.shape) for n, t in model.state_dict().items()}),
    }
    with channels_last(model, few[:2]):
        history = _run(job, identity, validation, folder, progress)
    model.eval()
    return history


@dataclass(frozen=True)
class _Job:
    recipe: Recipe
    fabric: Fabric
    model: nn.Module
    optimizer: torch.optim.SGD
    images: Tensor
    labels: Tensor
    classes: int
    few: Tensor


def _cpu_fabric() -> Fabric:
    from lightning_fabric import Fabric  # noqa: PLC0415 (takes seconds to import)

    return Fabric(accelerator="cpu", devices=1)


def _devices(fabric: Fabric) -> list[torch.device]:
    """The devices besides the CPU whose random state a model's dropout may move."""
    return [fabric.device] if fabric.device.type == "cuda" else []


def _count_classes(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad():
        return int(logits_of(model, x).shape[1])


def _run(
    job: _Job,
    identity: dict[str, Any],
    validation: tuple[Tensor, Tensor] | None,
    folder: str | Path | None,
    progress: Progress,
) -> list[Epoch]:
    """The epochs that the folder does not hold yet."""
    recipe, fabric, model = job.recipe, job.fabric, job.model
    history = _resume(folder, job, identity)
    wrapped, wrapped_optimizer = fabric.setup(model, job.optimizer)
    batches = recipe.steps_of_epoch(len(job.labels))
    with progress.task(f"train {recipe.objective}", total=recipe.epochs * batches) as task:
        task.advance(len(history) * batches)
        for epoch in range(len(history), recipe.epochs):
            with torch.random.fork_rng(devices=_devices(fabric)):
                done = _run_epoch(job, wrapped, wrapped_optimizer, epoch, task)
            if validation is not None:
                done = Epoch(
                    **(asdict(done) | {"validation_accuracy": _accuracy(model, *validation)})
                )
            history.append(done)
            if folder is not None and fabric.is_global_zero:
                _save(Path(folder), job, identity, history)
            task.advance(0, f"loss {done.loss:.3f}  accuracy {done.accuracy:.1%}")
    return history


def _run_epoch(job: _Job, model: Any, optimizer: Any, epoch: int, task: Task) -> Epoch:
    """One pass over the data in an order that follows from the seed and the epoch."""
    recipe, started = job.recipe, time.perf_counter()
    order = random_order(len(job.labels), seed=recipe.seed, name=f"epoch {epoch}")
    batches = order.tensor_split(math.ceil(len(order) / recipe.batch_size))  # of nearly equal size
    batches = batches[: recipe.steps_of_epoch(len(order))]
    count = sum(len(index) for index in batches)
    total = torch.zeros(2, device=job.fabric.device)
    attacks = recipe.steps * count if recipe.objective in ADVERSARIAL else 0
    victim = victim_of(job.model, job.few, images=attacks)
    model.train()
    for number, index in enumerate(batches):
        torch.manual_seed(derive_seed(recipe.seed, "dropout", epoch, number))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, epoch * len(batches) + number, len(batches))
        examples = _examples(job, catch_up(victim, job.model), index, epoch)
        logits = unwrap(model(examples.x))
        loss = examples.loss(logits)
        optimizer.zero_grad()
        job.fabric.backward(loss)
        optimizer.step()
        with torch.no_grad():
            total += torch.stack((loss, examples.accuracy(logits))) * (len(index) / count)
        task.advance()
    loss_value, accuracy = total.tolist()
    if not math.isfinite(loss_value):
        raise TrainingDivergedError(
            f"the loss became {loss_value} in epoch {epoch + 1} of {recipe.epochs} "
            f"({recipe.objective}, lr {recipe.lr:g}). Lower lr or use schedule = 'one-cycle'; "
            "the state of the epoch before, if there was one, is kept."
        )
    return Epoch(epoch + 1, loss_value, accuracy, time.perf_counter() - started)


def _examples(job: _Job, victim: nn.Module, index: Tensor, epoch: int) -> Examples:
    """The rows of the data as the objective wants them."""
    recipe, device = job.recipe, job.fabric.device
    x = augment(
        as_pixels(job.images[index].to(device), dtype_of(job.model)),
        index.to(device),
        epoch=epoch,
        seed=recipe.seed,
        flip=recipe.flip,
        padding=recipe.crop_padding,
    )
    batch = Batch(x, job.labels[index].to(device), index.to(device), epoch)
    return OBJECTIVES[recipe.objective](victim, batch, recipe, job.classes)


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    right, device = 0, device_of(model)
    with torch.no_grad():
        for x, y in zip(images.split(512), labels.split(512), strict=True):
            predicted = logits_of(model, as_pixels(x.to(device), dtype_of(model))).argmax(1)
            right += int((predicted.cpu() == y.cpu()).sum())
    return right / len(labels)


def _save(folder: Path, job: _Job, identity: dict[str, Any], history: list[Epoch]) -> None:
    momentum = {
        _MOMENTUM + name: job.optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in job.model.named_parameters()
        if job.optimizer.state[parameter].get("momentum_buffer") is not None
    }
    header = {**identity, "epochs_done": len(history), "history": [asdict(e) for e in history]}
    scores = [e.validation_accuracy for e in history if e.validation_accuracy is not None]
    if scores and scores[-1] > max(scores[:-1], default=-1.0):
        save_checkpoint(folder / BEST, job.model, **header)
    save_checkpoint(folder / LAST, job.model, extra=momentum, **header)


def _resume(folder: str | Path | None, job: _Job, identity: dict[str, Any]) -> list[Epoch]:
    """Put back the state that an earlier call left in the folder, if there is one."""
    if folder is None or not (Path(folder) / LAST).exists():
        return []
    path = Path(folder) / LAST
    tensors, header = read_checkpoint(path)
    theirs = {name: header.get(name) for name in identity}
    if fingerprint(theirs) != fingerprint(identity):
        raise InputError(
            f"{path} belongs to another training ({_difference(theirs, identity)}). "
            "Give another folder, or delete this one."
        )
    fill_weights(job.model, tensors, path)
    for name, parameter in job.model.named_parameters():
        if _MOMENTUM + name in tensors:
            buffer = torch.empty_like(parameter).copy_(tensors[_MOMENTUM + name])  # laid out alike
            job.optimizer.state[parameter]["momentum_buffer"] = buffer
    return [Epoch(**epoch) for epoch in header["history"]]


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """In words, where two identities differ."""
    for name, words in (
        ("data", "data"),
        ("validation", "validation data"),
        ("weights", "network"),
    ):
        if theirs[name] != ours[name]:
            return f"other {words}"
    old, new = theirs["recipe"] or {}, ours["recipe"]
    names = [n for n in new if fingerprint(old.get(n)) != fingerprint(new[n])]
    return ", ".join(f"{n} {old.get(n)} instead of {new[n]}" for n in names)
