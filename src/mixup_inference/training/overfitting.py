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

#: PGD accuracy may fall this far (from its highest here, in one epoch in the published code).
FALL = 0.2

#: So many more images may withstand FGSM than PGD; a model that never was robust does not fall.
GAP = 0.5


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
    """Whether the robustness to FGSM is none to PGD, or PGD accuracy alone has fallen far."""
    found = [
        (epoch.fgsm_accuracy, epoch.pgd_accuracy)
        for epoch in history
        if epoch.fgsm_accuracy is not None and epoch.pgd_accuracy is not None
    ]
    if not found:
        return False
    fgsm, least = found[-1]
    fgsm_fall, pgd_fall = (max(each) - each[-1] for each in zip(*found, strict=True))
    return fgsm - least > GAP or fgsm_fall <= FALL < pgd_fall


def warn_of_overfitting(history: list[Epoch]) -> None:
    """Warn in the first epoch in which it happens."""
    before = any(has_overfitted(history[:count]) for count in range(len(history)))
    if has_overfitted(history) and not before:
        last = history[-1]
        warnings.warn(
            f"catastrophic overfitting in epoch {last.epoch}: {last.fgsm_accuracy:.0%} of some "
            f"training images withstand FGSM, {last.pgd_accuracy:.0%} PGD. Do not trust this "
            "model's robustness; lower eps or lr, train for fewer epochs, or use at or trades.",
            MixupInferenceWarning,
            stacklevel=2,
        )
