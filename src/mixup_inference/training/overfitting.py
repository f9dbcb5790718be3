"""Catastrophic overfitting (Wong et al., 2020): robustness to FGSM that is none to PGD.

Training with one-step attacks may end in it within an epoch. As in that paper it is looked for
after each epoch, with PGD on a few training images; here the history keeps what was found, a
warning says so, and the training goes on.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from mixup_inference.attacks import pgd
from mixup_inference.datasets import random_order
from mixup_inference.draws import derive_seed
from mixup_inference.errors import MixupInferenceWarning
from mixup_inference.models.call import device_of, dtype_of, logits_of
from mixup_inference.training.checkpointing import Epoch
from mixup_inference.training.recipe import Recipe
from mixup_inference.validation import as_pixels

#: How many training images are attacked after each epoch, and by how many steps of PGD.
IMAGES, STEPS = 128, 10

#: PGD accuracy may fall this far below its highest, as in the published code.
FALL = 0.2


def robustness(
    model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe
) -> tuple[float, float]:
    """The accuracy under FGSM, as fast AT makes it, and under PGD, on a few training images."""
    chosen = random_order(len(labels), seed=recipe.seed, name="overfitting")[:IMAGES]
    device = device_of(model)
    x = as_pixels(images[chosen].to(device), dtype_of(model))
    y = labels[chosen].to(device)
    seed = derive_seed(recipe.seed, "overfitting")

    def accuracy(step: float, steps: int) -> float:
        found = pgd(model, x, y, eps=recipe.eps, step=step, steps=steps, seed=seed)
        with torch.no_grad():
            return float((logits_of(model, found).argmax(1) == y).double().mean())

    return accuracy(1.25 * recipe.eps, 1), accuracy(recipe.eps / 4, STEPS)


def has_overfitted(history: list[Epoch]) -> bool:
    """Whether PGD accuracy has fallen far below its highest, and FGSM accuracy has not."""
    pgd_accuracies = [e.pgd_accuracy for e in history if e.pgd_accuracy is not None]
    fgsm_accuracies = [e.fgsm_accuracy for e in history if e.fgsm_accuracy is not None]
    return (
        bool(pgd_accuracies and fgsm_accuracies)
        and max(pgd_accuracies) - pgd_accuracies[-1] > FALL
        and max(fgsm_accuracies) - fgsm_accuracies[-1] <= FALL
    )


def warn_of_overfitting(history: list[Epoch]) -> None:
    """Warn in the epoch in which it happens."""
    if has_overfitted(history) and not has_overfitted(history[:-1]):
        last = history[-1]
        warnings.warn(
            f"catastrophic overfitting in epoch {last.epoch}: {last.fgsm_accuracy:.0%} of some "
            f"training images withstand FGSM, {last.pgd_accuracy:.0%} PGD. Do not trust this "
            "model's robustness; lower eps or lr, train for fewer epochs, or use at or trades.",
            MixupInferenceWarning,
            stacklevel=2,
        )
