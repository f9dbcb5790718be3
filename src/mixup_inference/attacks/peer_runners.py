"""How each attack library is called: with our images, labels, eps and norm in its own way."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks.job import Batch
from mixup_inference.attacks.victim import Averaged
from mixup_inference.errors import InputError

#: AutoAttack's attacks that run alone.
SINGLE = ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]


@dataclass(frozen=True)
class Job:
    """What a library is handed."""

    name: str
    maker: Any
    model: Averaged
    batch: Batch
    classes: int
    seed: int
    settings: dict[str, Any]

    @property
    def x(self) -> Tensor:
        """Images that are not a rounding error outside of [0, 1]; some libraries insist."""
        return self.batch.x.clamp(0, 1)

    @property
    def labels(self) -> Tensor:
        """Where to go away from, or where to go."""
        return self.batch.y if self.batch.target is None else self.batch.target

    def arguments(self, **ours: Any) -> dict[str, Any]:
        """Of our arguments those that the class takes, and the caller's settings."""
        known, radius, eps = takes(self.maker), _radius(self.maker), self.batch.ball.eps
        if radius is not None:
            ours[radius] = eps
            for step in known.keys() & {"alpha", "eps_step"}:
                ours[step] = eps * known[step].default / known[radius].default
        return {name: value for name, value in ours.items() if name in known} | self.settings


def _foolbox(job: Job) -> Tensor:
    foolbox = importlib.import_module("foolbox")
    model = foolbox.PyTorchModel(job.model, bounds=(0, 1), device=job.x.device)
    kind = "Misclassification" if job.batch.target is None else "TargetedMisclassification"
    criterion = getattr(foolbox.criteria, kind)(job.labels)
    eps = job.batch.ball.eps if is_fixed(job.maker) else None
    out: Tensor = job.maker(**job.settings)(model, job.x, criterion, epsilons=eps)[1]
    return out


def _torchattacks(job: Job) -> Tensor:
    norm = {"linf": "Linf", "l2": "L2"}[job.batch.ball.norm]
    attack = job.maker(job.model, **job.arguments(norm=norm, seed=job.seed, n_classes=job.classes))
    attack.set_device(job.x.device)
    if job.batch.target is not None:
        attack.set_mode_targeted_by_label(quiet=True)
    out: Tensor = attack(job.x, job.labels)
    return out


def _art(job: Job) -> Tensor:
    classifier = importlib.import_module("art.estimators.classification").PyTorchClassifier(
        job.model, loss=nn.CrossEntropyLoss(), input_shape=tuple(job.x.shape[1:]),
        nb_classes=job.classes, clip_values=(0, 1),
        device_type="cpu" if job.x.device.type == "cpu" else "gpu",
    )  # fmt: skip
    targeted = job.batch.target is not None
    if targeted and "targeted" not in takes(job.maker):
        raise InputError(f"art:{job.name} cannot go towards a class; leave targeted out.")
    norm = {"linf": np.inf, "l2": 2}[job.batch.ball.norm]
    ours = {"norm": norm, "targeted": targeted, "batch_size": len(job.x), "verbose": False}
    attack = job.maker(classifier, **job.arguments(**ours))
    labels = functional.one_hot(job.labels, job.classes)
    out = attack.generate(job.x.float().cpu().numpy(), labels.float().cpu().numpy())
    return torch.from_numpy(out)


def _autoattack(job: Job) -> Tensor:
    if job.batch.target is not None:
        raise InputError("AutoAttack chooses its targets itself; leave targeted and targets out.")
    single = job.name in SINGLE
    attack = job.maker(
        job.model, norm={"linf": "Linf", "l2": "L2"}[job.batch.ball.norm], eps=job.batch.ball.eps,
        seed=job.seed, device=job.x.device, version="custom" if single else job.name,
        attacks=[job.name] if single else None,
    )  # fmt: skip
    for part in (attack.apgd, attack.apgd_targeted, attack.fab, attack.square):
        most = {"n_target_classes": min(getattr(part, "n_target_classes", 9), job.classes - 1)}
        for setting, value in (most | job.settings).items():
            if hasattr(part, setting):
                setattr(part, setting, value)
    out: Tensor = attack.run_standard_evaluation(job.x, job.labels, batch_size=len(job.x))[0]
    return out


RUNNERS: dict[str, Callable[[Job], Tensor]] = {
    "art": _art,
    "autoattack": _autoattack,
    "foolbox": _foolbox,
    "torchattacks": _torchattacks,
}


def takes(maker: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments that a class takes."""
    return inspect.signature(maker).parameters


def _radius(maker: Any) -> str | None:
    """What the class calls eps, if it is told of it when made."""
    return next((name for name in ("eps", "max_epsilon") if name in takes(maker)), None)


def is_fixed(maker: Any) -> bool:
    """Whether an attack of foolbox keeps within eps, rather than looking for the nearest."""
    return any(kind.__name__ == "FixedEpsilonAttack" for kind in maker.__mro__)


def norm_of(maker: Any) -> str | None:
    """The only norm that an attack bounds, "any" if it asks, None if it bounds nothing."""
    if is_fixed(maker):
        return f"l{maker.distance.p:g}"
    if _radius(maker) is None:
        return None
    if "norm" in takes(maker):
        return "any"
    return "l2" if maker.__name__.endswith("L2") else "linf"
