"""Settings of a training run, apart from the network and the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.registry import is_code
from mixup_inference.training.objectives import OBJECTIVES
from mixup_inference.validation import describe

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
T = TypeVar("T")


def _known(objective: str) -> str:
    """A known objective, or the place of one; its code runs only once it has been loaded."""
    return objective if is_code(objective) else OBJECTIVES[objective].name


def _plain_errors(cls: type[T]) -> type[T]:
    """Make a pydantic class raise InputError, with one sentence for each problem."""
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def checked(self: T, *args: Any, **settings: Any) -> None:
        try:
            init(self, *args, **settings)
        except ValidationError as error:
            raise InputError(" ".join(map(_sentence, error.errors()))) from None

    cls.__init__ = checked  # type: ignore[assignment,method-assign]
    return cls


def _sentence(problem: Any) -> str:
    name = str(problem["loc"][0])
    if problem["type"] == "unexpected_keyword_argument":
        return str(unknown_name("setting", name, [field.name for field in fields(Recipe)]))
    return describe(problem, name + ", as fractions of the epochs," * (name == "milestones"))


#: The settings that 0.1.0 did not have, with their defaults.
_ADDED = {"ratio": "sample", "beta": 6.0, "replays": 4, "smoothing": 0.1, "margin": 0.5}


@_plain_errors
@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Recipe:
    """Settings of a training run. The defaults are the paper's for mixup (Section 4.1).

    Attributes:
        objective: "erm", "mixup", "at" (adversarial training), "iat" (interpolated AT), another
            one in ``OBJECTIVES``, or one of your own.
        epochs: passes over the data.
        batch_size: images a step; "at", "iat" and "trades" add as many adversarial ones.
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
        adv_ratio: weight of the adversarial half of the loss of "at" and "iat".
        beta: weight of the divergence in the loss of "trades".
        replays: steps that "free-at" makes with each batch (8 in its paper). A pass over the data
            takes as many epochs, so ``epochs`` stands for the same number of steps.
        smoothing: share of a label that "label-smoothing" spreads over all classes.
        margin: least difference between the two ratios of "mit".
        flip: random horizontal flips.
        crop_padding: random shifts by up to this many pixels.
        max_steps: at most this many steps an epoch, for a quick trial; None takes all the data.
        precision: "32-true" computes in the precision of the weights; "bf16-mixed" and "16-mixed"
            (on a GPU) compute in 16 bits where that is safe. None leaves it to the ``Fabric``.
        seed: of everything random in the training.
    """

    objective: Annotated[str, AfterValidator(_known)] = "mixup"
    epochs: Count = 200
    batch_size: Annotated[int, Field(ge=2)] = 64
    lr: Positive = 0.01
    momentum: Share = 0.9
    weight_decay: Amount = 0.0
    schedule: Literal["step", "one-cycle"] = "step"
    milestones: tuple[Share, ...] = (0.5, 0.75)
    warmup: Share = 0.2
    alpha: Positive = 1.0
    ratio: Literal["sample", "batch"] = "sample"
    lam: Share | None = None
    eps: Amount = 8 / 255
    step: Amount = 2 / 255
    steps: Annotated[int, Field(ge=0)] = 10
    attack_labels: Literal["true", "predicted"] = "true"
    adv_ratio: Share = 0.5
    beta: Amount = 6.0
    replays: Count = 4
    smoothing: Share = 0.1
    margin: Share = 0.5
    flip: bool = False
    crop_padding: Annotated[int, Field(ge=0)] = 0
    max_steps: Count | None = None
    precision: Precision | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def steps_of_epoch(self, count: int) -> int:
        """How many steps an epoch over this many images has.

        >>> Recipe(batch_size=64).steps_of_epoch(50_000)
        782
        """
        steps = math.ceil(count / self.batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def header(self) -> dict[str, Any]:
        """The recipe as JSON, for headers and identities; ``of_header`` reads it.

        A setting that 0.1.0 did not have is left out at its default, so that the identity of a
        training stays what it was.
        """
        settings = asdict(self)
        for name, default in _ADDED.items():
            if settings[name] == default:
                del settings[name]
        return settings | {"milestones": list(self.milestones)}

    @classmethod
    def of_header(cls, settings: Mapping[str, Any]) -> Recipe:
        """The recipe in the header of a checkpoint."""
        return cls(**settings)

    @classmethod
    def of_paper(cls, objective: str) -> Recipe:
        """The paper's settings for an objective."""
        return cls(objective=objective, **OBJECTIVES[objective].paper)


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
