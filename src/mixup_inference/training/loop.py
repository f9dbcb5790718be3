"""One training loop for all objectives, on Lightning Fabric, resumable to the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.datasets import as_tensors
from mixup_inference.draws import derive_seed
from mixup_inference.errors import TrainingDivergedError
from mixup_inference.models.call import dtype_of, logits_of
from mixup_inference.models.folding import Folded
from mixup_inference.training.batches import augment, epoch_batches, gather_rows, own_rows
from mixup_inference.training.checkpointing import Checkpointer, Epoch, EpochProgress
from mixup_inference.training.distributed import (
    check_agreement,
    check_fabric,
    in_precision_of,
    one_process,
    summed,
    warm_up,
)
from mixup_inference.training.objectives import OBJECTIVES, Batch, Examples, SharedBatch
from mixup_inference.training.overfitting import robustness, warn_of_overfitting
from mixup_inference.training.recipe import Recipe, learning_rate
from mixup_inference.training.speed import attack_target, channels_last, refreshed
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

    The same seed gives the same weights. With a ``folder``, the state is saved after every epoch
    (``last.safetensors``, and ``best.safetensors`` when there is validation data) and every
    ``save_every`` seconds in between. A later call with the same arguments resumes from there, also
    in the middle of an epoch, with the same result as without the interruption; the weights that
    the model holds at that time do not matter.

    Args:
        model: from NCHW images in [0, 1] to logits; the number of classes is read off its output.
        images: NCHW, uint8 or float in [0, 1]; or a Dataset of (image, label).
        labels: one integer per image; left out when ``images`` is a Dataset.
        recipe: a ``Recipe``, or the name of an objective for the paper's settings of it.
        validation: images and labels on which ``best`` is chosen.
        folder: where the state is saved; None saves nothing.
        save_every: seconds between two saves within an epoch.
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
    trial = as_pixels(images[:8].to(fabric.device), dtype_of(model))
    with torch.no_grad():
        classes = int(logits_of(model, trial[:2]).shape[1])
    labels = check_labels(labels, count=images.shape[0], classes=classes, what="labels")
    check_fabric(fabric, recipe, len(labels) // math.ceil(len(labels) / recipe.batch_size))
    identity = {
        "recipe": recipe.header(),
        "data": hash_tensors(images, labels),
        "validation": None if validation is None else hash_tensors(*validation),
        "weights": fingerprint({n: list(t.shape) for n, t in model.state_dict().items()}),
    }
    check_agreement(fabric, fingerprint(identity))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    every = check_number(save_every, what="save_every, in seconds,", least=0)
    path = None if folder is None else Path(folder)
    checkpointer = Checkpointer(path, fabric, model, optimizer, identity, every)
    trainer = _Trainer(recipe, fabric, model, images, labels, classes, trial, checkpointer)
    joint = joint_batch_norm(model) if fabric.world_size > 1 else nullcontext()
    with channels_last(model, trial[:2]), joint:
        history = trainer.fit(validation, progress if fabric.is_global_zero else SILENT)
    fabric.barrier()  # the last state is written when any process goes on
    model.eval()
    return history


@dataclass(frozen=True)
class _Trainer:
    """A model, its data and its recipe; ``trial`` is a few images to try things on."""

    recipe: Recipe
    fabric: Fabric
    model: nn.Module
    images: Tensor
    labels: Tensor
    classes: int
    trial: Tensor
    checkpointer: Checkpointer

    def fit(self, validation: tuple[Tensor, Tensor] | None, progress: Progress) -> list[Epoch]:
        """Run what the folder does not hold yet: the rest of an epoch, and those after it."""
        recipe, fabric = self.recipe, self.fabric
        history, within = self.checkpointer.restore()
        model, optimizer = fabric.setup(self.model, self.checkpointer.optimizer)
        if fabric.world_size > 1:
            warm_up(fabric, model, self.trial)
        steps = recipe.steps_of_epoch(len(self.labels))
        gpus = [fabric.device] if fabric.device.type == "cuda" else []
        with progress.task(f"train {recipe.objective}", total=recipe.epochs * steps) as task:
            task.advance(len(history) * steps + within.batches)
            while len(history) < recipe.epochs:
                with torch.random.fork_rng(devices=gpus):  # dropout moves it
                    done = self.run_epoch(model, optimizer, history, within, task)
                if validation is not None:
                    done = replace(done, validation_accuracy=self.accuracy(*validation))
                if OBJECTIVES[recipe.objective].watched:
                    fgsm, pgd = robustness(self.model, self.images, self.labels, recipe)
                    done = replace(done, fgsm_accuracy=fgsm, pgd_accuracy=pgd)
                history.append(done)
                if fabric.is_global_zero:
                    warn_of_overfitting(history)
                within = EpochProgress()
                self.checkpointer.save(history)
                task.advance(0, f"loss {done.loss:.3f}  accuracy {done.accuracy:.1%}")
        return history

    def run_epoch(
        self, model: Any, optimizer: Any, history: list[Epoch], within: EpochProgress, task: Task
    ) -> Epoch:
        """Run the rest of an epoch; its order follows from the seed and its number."""
        recipe, fabric, epoch = self.recipe, self.fabric, len(history)
        started = time.perf_counter() - within.seconds
        objective = OBJECTIVES[recipe.objective]
        replays = recipe.replays if objective.replays else 1
        batches = epoch_batches(recipe, len(self.labels), epoch, replays=replays)
        count = sum(len(index) for index in batches)
        totals = torch.tensor([within.loss, within.accuracy], device=fabric.device)
        attacks = objective.inner_passes(recipe)[1] * count
        target = attack_target(self.model, self.trial, images=attacks, folded=within.folded)
        model.train()
        for number in range(within.batches, len(batches)):
            index = batches[number]
            torch.manual_seed(self.dropout_seed(epoch, number))
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, epoch * len(batches) + number, len(batches))
            examples = self.examples(refreshed(target, self.model), index, epoch // replays)
            logits = examples.logits(model)
            loss = examples.loss(logits)
            optimizer.zero_grad()
            fabric.backward(loss * fabric.world_size)  # gradients are averaged over processes
            optimizer.step()
            self.checkpointer.carried = examples.carry()
            with torch.no_grad():
                both = summed(fabric, torch.stack((loss, examples.accuracy(logits))))
                totals += both * (len(index) / count)
            if self.checkpointer.is_due and bool(totals.isfinite().all()):
                so_far, accuracy = totals.tolist()
                seconds, folded = time.perf_counter() - started, isinstance(target, Folded)
                reached = EpochProgress(number + 1, so_far, accuracy, seconds, folded)
                self.checkpointer.save(history, reached)
            task.advance()
        mean_loss, accuracy = totals.tolist()
        if not math.isfinite(mean_loss):
            raise TrainingDivergedError(
                f"the loss became {mean_loss} in epoch {epoch + 1} of {recipe.epochs} "
                f"({recipe.objective}, lr {recipe.lr:g}). Lower lr or use schedule = 'one-cycle'; "
                "what was saved before, if anything was, is still there."
            )
        return Epoch(epoch + 1, mean_loss, accuracy, time.perf_counter() - started)

    def dropout_seed(self, epoch: int, number: int) -> int:
        """A seed for each step and process; the first process has that of a single one."""
        rank = self.fabric.global_rank
        return derive_seed(self.recipe.seed, "dropout", epoch, number, *([rank] if rank else []))

    def examples(self, target: nn.Module, index: Tensor, epoch: int) -> Examples:
        """Apply the objective to this process's rows of a batch."""
        fabric, recipe = self.fabric, self.recipe
        own = own_rows(fabric, len(index))
        shared = SharedBatch(
            index.to(fabric.device),
            self.labels[index].to(fabric.device),
            own,
            images=lambda rows: self.augmented(index[rows.cpu()], epoch),
            gather=lambda x: gather_rows(fabric, x, len(index)),
        )
        batch = Batch(
            self.augmented(index[own], epoch),
            shared.y[own],
            shared.index[own],
            epoch,
            shared if fabric.world_size > 1 else None,
            self.checkpointer.carried,
        )
        # Not in float16, in which the gradients of confident predictions vanish.
        with fabric.autocast() if recipe.precision == "bf16-mixed" else nullcontext():
            return OBJECTIVES[recipe.objective].function(target, batch, recipe, self.classes)

    def augmented(self, index: Tensor, epoch: int) -> Tensor:
        """The images at these positions of the data, augmented."""
        device = self.fabric.device
        return augment(
            as_pixels(self.images[index].to(device), dtype_of(self.model)),
            index.to(device),
            epoch=epoch,
            seed=self.recipe.seed,
            flip=self.recipe.flip,
            padding=self.recipe.crop_padding,
        )

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """The model's accuracy; the processes take turns."""
        fabric, dtype = self.fabric, dtype_of(self.model)
        correct = torch.zeros(1, dtype=torch.int64, device=fabric.device)
        parts = list(zip(images.split(512), labels.split(512), strict=True))
        with torch.no_grad():
            for x, y in parts[fabric.global_rank :: fabric.world_size]:
                logits = logits_of(self.model, as_pixels(x.to(fabric.device), dtype))
                correct += (logits.argmax(1) == y.to(fabric.device)).sum()
        return int(summed(fabric, correct)) / len(labels)
