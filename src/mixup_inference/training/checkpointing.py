"""Save the state of a training to its folder, and restore it from there."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.models import fill_weights, read_checkpoint, save_checkpoint
from mixup_inference.training.recipe import Recipe
from mixup_inference.utils.distributed import Ranks
from mixup_inference.utils.io import fingerprint

if TYPE_CHECKING:
    from lightning_fabric import Fabric


LAST, BEST = "last.safetensors", "best.safetensors"

_MOMENTUM = "momentum."
_CARRIED = "carried"


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch. Accuracy is on the training examples: mixed, attacked, augmented.

    The last two are measured on a few training images, if the objective asks for it.
    """

    epoch: int
    loss: float
    accuracy: float
    seconds: float
    validation_accuracy: float | None = None
    fgsm_accuracy: float | None = None
    pgd_accuracy: float | None = None


@dataclass(frozen=True)
class EpochProgress:
    """The state within an epoch: batches done, their share of loss and accuracy, their time.

    ``folded``: whether the inner attack queries a folded copy, which is decided once an epoch.
    """

    batches: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    seconds: float = 0.0
    folded: bool | None = None


@dataclass
class Checkpointer:
    """Save and restore the state of a training.

    Attributes:
        folder: None saves nothing.
        fabric: its first process writes; its precision may have a state of its own.
        model: what is trained.
        optimizer: of the model; its momentum is part of the state.
        identity: what determines the training; the state of another one is refused.
        every: seconds between two saves within an epoch.
        carried: what the last step handed to the next one, part of the state too.
    """

    folder: Path | None
    fabric: Fabric
    model: nn.Module
    optimizer: torch.optim.SGD
    identity: dict[str, Any]
    every: float
    carried: Tensor | None = None
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_due(self) -> bool:
        """Whether the state of an unfinished epoch is to be saved now."""
        return self._writes and time.monotonic() - self._saved_at >= self.every

    @property
    def _writes(self) -> bool:
        return self.folder is not None and self.fabric.is_global_zero

    def save(self, history: list[Epoch], within: EpochProgress | None = None) -> None:
        """Save the state after the last epoch of the history, or within the one after it."""
        if not self._writes:
            return
        assert self.folder is not None
        header = {
            **self.identity,
            "epochs_done": len(history),
            "history": [asdict(epoch) for epoch in history],
            "under_way": None if within is None else asdict(within),
            "precision": self.fabric.strategy.precision.state_dict(),
        }
        scores = [e.validation_accuracy for e in history if e.validation_accuracy is not None]
        if within is None and scores and scores[-1] > max(scores[:-1], default=-1.0):
            save_checkpoint(self.folder / BEST, self.model, **header)
        save_checkpoint(self.folder / LAST, self.model, extra=self._extra(), **header)
        self._saved_at = time.monotonic()

    def restore(self) -> tuple[list[Epoch], EpochProgress]:
        """Restore the state that an earlier call left in the folder, if there is one."""
        if self.folder is None:
            return [], EpochProgress()
        path = self.folder / LAST
        tensors, header = Ranks.of(self.fabric).first(lambda: self._read(path))
        if not header:
            return [], EpochProgress()
        fill_weights(self.model, tensors, path)
        for name, parameter in self.model.named_parameters():
            if _MOMENTUM + name in tensors:  # laid out as the parameter is
                buffer = torch.empty_like(parameter).copy_(tensors[_MOMENTUM + name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        if _CARRIED in tensors:
            self.carried = tensors[_CARRIED].to(self.fabric.device)
        if header.get("precision"):
            self.fabric.strategy.precision.load_state_dict(header["precision"])
        within = EpochProgress(**(header.get("under_way") or {}))
        return [Epoch(**epoch) for epoch in header["history"]], within

    def _read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read the state of the same training; empty if there is none."""
        if not path.exists():
            return {}, {}
        tensors, header = read_checkpoint(path)
        theirs = {name: header.get(name) for name in self.identity}
        if isinstance(theirs["recipe"], dict):  # with the defaults of settings it did not know
            theirs["recipe"] = Recipe.of_header(theirs["recipe"]).header()
        if fingerprint(theirs) != fingerprint(self.identity):
            raise InputError(
                f"{path} belongs to another training ({_difference(theirs, self.identity)}). "
                "Give another folder, or delete this one."
            )
        return tensors, header

    def _extra(self) -> dict[str, Tensor]:
        """The state beside the weights: the momentum, and what is carried from step to step."""
        state = self.optimizer.state
        momentum = {
            _MOMENTUM + name: state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
            if state[parameter].get("momentum_buffer") is not None
        }
        return momentum if self.carried is None else {**momentum, _CARRIED: self.carried}


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Say where two identities differ."""
    for name, what in (("data", "data"), ("validation", "validation data"), ("weights", "network")):
        if theirs[name] != ours[name]:
            return f"other {what}"
    old, new = theirs["recipe"] or {}, ours["recipe"]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {old.get(name)} instead of {new.get(name)}" for name in names)
