"""What an attack climbs: a copy of the model that is faster, and says the same."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from mixup_inference.attacks.victim import is_random
from mixup_inference.classifier import check_model
from mixup_inference.defenses import StochasticModule
from mixup_inference.errors import unknown_name
from mixup_inference.models.folding import faster, pays

#: Of an attack's own passes through F, by the names that Lightning Fabric has for them.
Precision = Literal["32-true", "bf16-mixed"]


def quick(
    model: nn.Module, x: Tensor, *, images: int, precision: Precision = "32-true"
) -> nn.Module:
    """The same model or defence, around a folded copy of F where that pays for so many images.

    Only if F has no randomness, which a copy might lose. With the precision "bf16-mixed" the copy
    computes in bfloat16, its gradients too, unless that changes what F says: 1.5 to 2 times as fast
    on processors that can, and most signs of a gradient stay as they are. What is found with it is
    to be judged by the model itself.
    """
    if precision not in (known := get_args(Precision)):
        raise unknown_name("precision", precision, known)
    defense = model if isinstance(model, StochasticModule) else None
    base = check_model(model) if defense is None else defense.model
    images *= 1 if defense is None else defense.draws
    if not pays(base, images=images) or is_random(base, x):
        return model
    folded = faster(base, x, images=images, rounds=precision == "bf16-mixed")
    if folded is base:
        return model
    return folded if defense is None else defense.with_model(folded)
