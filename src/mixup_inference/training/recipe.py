"""What determines a training, apart from the network and the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.validation import check_int, check_number

Objective = Literal["erm", "mixup", "at", "iat"]
Schedule = Literal["step", "one-cycle"]
MixupRatio = Literal["sample", "batch"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
OBJECTIVES = ("erm", "mixup", "at", "iat")
SCHEDULES = ("step", "one-cycle")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run. The defaults are the paper's for mixup (Section 4.1).

    Attributes:
        objective: "erm", "mixup", "at" (adversarial training) or "iat" (interpolated AT).
        epochs: passes over the data.
        batch_size: clean images a step; the adversarial objectives add as many adversarial ones.
        lr: the highest learning rate (the paper has 0.1 for interpolated AT, see ``of_paper``).
        momentum: of SGD.
        weight_decay: 0, as in the published code.
        schedule: "step" multiplies by 0.1 at ``milestones``; "one-cycle" rises linearly over the
            first ``warmup`` of all steps, then falls to zero along a half cosine.
        milestones: as fractions of the epochs (100 and 150 of 200 in the paper).
        warmup: as a fraction of all steps.
        alpha: mixup's Beta(alpha, alpha).
        ratio: a mixing ratio of its own for each "sample", or one for the whole "batch" (published
            codes differ).
        lam: the same mixup ratio for all samples, instead of one from that distribution.
        eps, step, steps: the inner PGD attack of the adversarial objectives.
        attack_labels: "true", or "predicted" as in the published code.
        adv_ratio: weight of the adversarial half of the loss.
        flip: random horizontal flips.
        crop_padding: random shifts by up to this many pixels.
        max_steps: at most this many steps an epoch, for a quick trial; None takes all the data.
        precision: "32-true" computes in the precision of the weights; "bf16-mixed" and "16-mixed"
            (on a GPU) compute in 16 bits where that is safe. None leaves it to the ``Fabric``.
        seed: of everything random in the training.
    """

    objective: Objective = "mixup"
    epochs: int = 200
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "step"
    milestones: tuple[float, ...] = (0.5, 0.75)
    warmup: float = 0.2
    alpha: float = 1.0
    ratio: MixupRatio = "sample"
    lam: float | None = None
    eps: float = 8 / 255
    step: float = 2 / 255
    steps: int = 10
    attack_labels: Literal["true", "predicted"] = "true"
    adv_ratio: float = 0.5
    flip: bool = False
    crop_padding: int = 0
    max_steps: int | None = None
    precision: Precision | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise unknown_name("objective", self.objective, OBJECTIVES)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.precision not in (None, *PRECISIONS):
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.ratio not in ("sample", "batch"):
            raise unknown_name("ratio", self.ratio, ("sample", "batch"))
        if self.lam is not None:
            check_number(self.lam, what="lam", least=0, most=1)
        for name, least in (("epochs", 1), ("batch_size", 2), ("steps", 0), ("crop_padding", 0)):
            check_int(getattr(self, name), what=name, least=least)
        for name in ("lr", "alpha"):
            if check_number(getattr(self, name), what=name, least=0) == 0:
                raise InputError(f"{name} must be positive; saw 0.")
        for name in ("momentum", "adv_ratio", "warmup"):
            check_number(getattr(self, name), what=name, least=0, most=1)
        for name in ("weight_decay", "eps", "step"):
            check_number(getattr(self, name), what=name, least=0)
        for milestone in self.milestones:
            check_number(milestone, what="a milestone, a fraction of the epochs,", least=0, most=1)
        check_int(self.seed, what="seed", least=0)
        if self.max_steps is not None:
            check_int(self.max_steps, what="max_steps", least=1)

    def steps_of_epoch(self, count: int) -> int:
        """How many steps an epoch over this many images has.

        >>> Recipe(batch_size=64).steps_of_epoch(50_000)
        782
        """
        steps = math.ceil(count / self.batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @classmethod
    def of_header(cls, entries: Mapping[str, Any]) -> Recipe:
        """The recipe that the header of a checkpoint has, where JSON made lists of tuples."""
        settings: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in entries.items()
        }
        try:
            return cls(**settings)
        except TypeError as error:
            raise InputError(f"no recipe of this version: {error}.") from None

    @classmethod
    def of_paper(cls, objective: str) -> Recipe:
        """The paper's settings for an objective."""
        lr = 0.1 if objective == "iat" else 0.01
        return cls(objective=objective, lr=lr)  # type: ignore[arg-type]


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step; a function of the step alone, so resuming is exact."""
    total = recipe.epochs * steps_per_epoch
    if recipe.schedule == "step":
        passed = sum(step >= m * total for m in recipe.milestones)
        return recipe.lr * float(0.1**passed)
    rise = recipe.warmup * total
    if step < rise:
        return recipe.lr * (step + 1) / (rise + 1)
    done = (step - rise) / max(1.0, total - rise)
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * done))
