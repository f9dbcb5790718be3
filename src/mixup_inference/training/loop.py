"""One training loop for all objectives, on Lightning Fabric, resumable to the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.datasets import as_tensors, random_order
from mixup_inference.draws import derive_seed
from mixup_inference.errors import TrainingDivergedError
from mixup_inference.models.call import dtype_of, logits_of, unwrap
from mixup_inference.models.folding import Folded
from mixup_inference.training.batches import augment
from mixup_inference.training.checkpointing import Checkpointer, Epoch, EpochProgress
from mixup_inference.training.distributed import (
    check_agreement,
    check_fabric,
    gather_rows,
    in_precision_of,
    one_process,
    own_rows,
    settle,
    summed,
)
from mixup_inference.training.objectives import ADVERSARIAL, OBJECTIVES, Batch, Examples, Whole
from mixup_inference.training.recipe import Recipe, learning_rate
from mixup_inference.training.speed import catch_up, channels_last, victim_of
from mixup_inference.training.sync_batch_norm import joint_batch_norm
from mixup_inference.utils.io import fingerprint, hash_tensors
from mixup_inference.utils.progress import SILENT, Progress, Task
from mixup_inference.validation import as_pixels, check_labels, check_number, check_stored_images

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    model: nn.Module,
    images: Tensor | Iterable[Any],
    labels: Tensor | Recipe | str | None = None,
    recipe: Recipe | str = "mixup",
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    folder: str | Path | None = None,
    save_every: float = 60.0,
    fabric: Fabric | None = None,
    progress: Progress = SILENT,
) -> list[Epoch]:
    """Train ``model`` in place and leave it in eval mode; returns the history.

    The same seed gives the same weights. With a ``folder``, the state is written after every
    epoch (``last.safetensors``, and ``best.safetensors`` when there is validation data) and every
    ``save_every`` seconds in between. A later call with the same arguments goes on from there, also
    in the middle of an epoch, to the same result as without the interruption, whatever weights
    the model holds by then.

    Args:
        model: from NCHW images in [0, 1] to logits; the number of classes is read off its output.
        images: NCHW, uint8 or float in [0, 1]; or a Dataset of (image, label).
        labels: one integer per image; left out when ``images`` is a Dataset.
        recipe: a ``Recipe``, or the name of an objective for the paper's settings of it.
        validation: images and labels on which ``best`` is chosen.
        folder: where the state goes; None keeps nothing.
        save_every: seconds between two writes of the state within an epoch.
        fabric: of ``make_fabric``, or a launched ``lightning_fabric.Fabric`` of your own: another
            device or precision, or several processes, which share each batch.
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
    fabric = fabric or one_process(recipe)
    recipe = in_precision_of(fabric, recipe)
    model = model.to(fabric.device)
    few = as_pixels(images[:8].to(fabric.device), dtype_of(model))
    classes = _count_classes(model, few[:2])
    labels = check_labels(labels, count=images.shape[0], classes=classes, what="labels")
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    check_fabric(fabric, recipe, len(labels) // math.ceil(len(labels) / recipe.batch_size))
    job = _Job(recipe, fabric, model, images, labels, classes, few)
    identity = {
        "recipe": asdict(recipe),
        "data": hash_tensors(images, labels),
        "validation": None if validation is None else hash_tensors(*validation),
        "weights": fingerprint({n: list(t.shape) for n, t in model.state_dict().items()}),
    }
    check_agreement(fabric, fingerprint(identity))
    keeper = Checkpointer(
        folder,
        fabric=fabric,
        model=model,
        optimizer=optimizer,
        identity=identity,
        every=check_number(save_every, what="save_every, in seconds,", least=0),
    )
    joint = joint_batch_norm(model) if fabric.world_size > 1 else nullcontext()
    with channels_last(model, few[:2]), joint:
        history = _run(job, keeper, validation, progress if fabric.is_global_zero else SILENT)
    fabric.barrier()  # the last state is written when any process goes on
    model.eval()
    return history


@dataclass(frozen=True)
class _Job:
    recipe: Recipe
    fabric: Fabric
    model: nn.Module
    images: Tensor
    labels: Tensor
    classes: int
    few: Tensor


def _devices(fabric: Fabric) -> list[torch.device]:
    """The devices besides the CPU whose random state a model's dropout may move."""
    return [fabric.device] if fabric.device.type == "cuda" else []


def _count_classes(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad():
        return int(logits_of(model, x).shape[1])


def _run(
    job: _Job,
    keeper: Checkpointer,
    validation: tuple[Tensor, Tensor] | None,
    progress: Progress,
) -> list[Epoch]:
    """What the folder does not hold yet: the rest of an epoch, and the epochs after it."""
    recipe, fabric, model = job.recipe, job.fabric, job.model
    history, under_way = keeper.restore()
    wrapped, optimizer = fabric.setup(model, keeper.optimizer)
    if fabric.world_size > 1:
        settle(fabric, wrapped, job.few)
    batches = recipe.steps_of_epoch(len(job.labels))
    with progress.task(f"train {recipe.objective}", total=recipe.epochs * batches) as task:
        task.advance(len(history) * batches + under_way.batches)
        while len(history) < recipe.epochs:
            with torch.random.fork_rng(devices=_devices(fabric)):
                done = _run_epoch(job, wrapped, optimizer, keeper, history, under_way, task)
            if validation is not None:
                done = replace(done, validation_accuracy=_accuracy(job, *validation))
            history.append(done)
            under_way = EpochProgress()
            keeper.keep(history)
            task.advance(0, f"loss {done.loss:.3f}  accuracy {done.accuracy:.1%}")
    return history


def _run_epoch(
    job: _Job,
    model: Any,
    optimizer: Any,
    keeper: Checkpointer,
    history: list[Epoch],
    under_way: EpochProgress,
    task: Task,
) -> Epoch:
    """The rest of a pass over the data, in an order that follows from the seed and the epoch."""
    recipe, epoch = job.recipe, len(history)
    started = time.perf_counter() - under_way.seconds
    batches = _batches(job, epoch)
    count = sum(len(index) for index in batches)
    total = torch.tensor([under_way.loss, under_way.accuracy], device=job.fabric.device)
    attacks = recipe.steps * count if recipe.objective in ADVERSARIAL else 0
    victim = victim_of(job.model, job.few, images=attacks, folded=under_way.folded)
    model.train()
    for number in range(under_way.batches, len(batches)):
        index = batches[number]
        torch.manual_seed(_dropout_seed(job, epoch, number))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, epoch * len(batches) + number, len(batches))
        examples = _examples(job, catch_up(victim, job.model), index, epoch)
        logits = unwrap(model(examples.x))
        loss = examples.loss(logits)
        optimizer.zero_grad()
        job.fabric.backward(loss * job.fabric.world_size)  # gradients are averaged over processes
        optimizer.step()
        with torch.no_grad():
            both = summed(job.fabric, torch.stack((loss, examples.accuracy(logits))))
            total += both * (len(index) / count)
        if keeper.is_due and bool(total.isfinite().all()):
            so_far, accuracy = total.tolist()
            spent, folded = time.perf_counter() - started, isinstance(victim, Folded)
            keeper.keep(history, EpochProgress(number + 1, so_far, accuracy, spent, folded))
        task.advance()
    loss_value, accuracy = total.tolist()
    if not math.isfinite(loss_value):
        raise TrainingDivergedError(
            f"the loss became {loss_value} in epoch {epoch + 1} of {recipe.epochs} "
            f"({recipe.objective}, lr {recipe.lr:g}). Lower lr or use schedule = 'one-cycle'; "
            "what was written before, if anything was, is kept."
        )
    return Epoch(epoch + 1, loss_value, accuracy, time.perf_counter() - started)


def _batches(job: _Job, epoch: int) -> tuple[Tensor, ...]:
    """The positions of each step's images, in batches of nearly equal size."""
    count = len(job.labels)
    order = random_order(count, seed=job.recipe.seed, name=f"epoch {epoch}")
    batches = order.tensor_split(math.ceil(count / job.recipe.batch_size))
    return batches[: job.recipe.steps_of_epoch(count)]


def _dropout_seed(job: _Job, epoch: int, number: int) -> int:
    """Another one for each step and process; the first has that of a single process."""
    rank = job.fabric.global_rank
    return derive_seed(job.recipe.seed, "dropout", epoch, number, *([rank] if rank else []))


def _examples(job: _Job, victim: nn.Module, index: Tensor, epoch: int) -> Examples:
    """This process's rows of a batch as the objective wants them."""
    fabric, recipe = job.fabric, job.recipe
    own = own_rows(fabric, len(index))
    shared = Whole(
        index.to(fabric.device),
        job.labels[index].to(fabric.device),
        own,
        images=lambda rows: _clean(job, index[rows.cpu()], epoch),
        gather=lambda x: gather_rows(fabric, x, len(index)),
    )
    batch = Batch(
        _clean(job, index[own], epoch),
        shared.y[own],
        shared.index[own],
        epoch,
        shared if fabric.world_size > 1 else None,
    )
    # Not in float16, in which the gradients of what the model is sure of vanish.
    with fabric.autocast() if recipe.precision == "bf16-mixed" else nullcontext():
        return OBJECTIVES[recipe.objective](victim, batch, recipe, job.classes)


def _clean(job: _Job, index: Tensor, epoch: int) -> Tensor:
    """The images at these positions of the data, augmented."""
    device = job.fabric.device
    return augment(
        as_pixels(job.images[index].to(device), dtype_of(job.model)),
        index.to(device),
        epoch=epoch,
        seed=job.recipe.seed,
        flip=job.recipe.flip,
        padding=job.recipe.crop_padding,
    )


def _accuracy(job: _Job, images: Tensor, labels: Tensor) -> float:
    """The share of images that the model is right on; the processes take turns."""
    model, fabric = job.model, job.fabric
    right = torch.zeros(1, dtype=torch.int64, device=fabric.device)
    parts = list(zip(images.split(512), labels.split(512), strict=True))
    with torch.no_grad():
        for x, y in parts[fabric.global_rank :: fabric.world_size]:
            logits = logits_of(model, as_pixels(x.to(fabric.device), dtype_of(model)))
            right += (logits.argmax(1) == y.to(fabric.device)).sum()
    return int(summed(fabric, right)) / len(labels)
