"""Callback of an experiment: told of models, examples, cells and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mixup_inference.metrics.accuracy import Accuracy
from mixup_inference.utils.progress import Task


@dataclass(frozen=True)
class Column:
    """One column of the table: clean points, or PGD in one mode with a number of steps."""

    mode: str
    steps: int = 0

    @property
    def name(self) -> str:
        """As in results.json."""
        return self.mode if self.mode == "clean" else f"{self.mode} PGD-{self.steps}"


class Row(Protocol):
    """A row of the table, as far as it is shown."""

    @property
    def title(self) -> str:
        """What it is called."""

    @property
    def group(self) -> str:
        """Rows of one group stand together."""


class Callback:
    """Callback interface; the base class ignores all events.

    ``task`` is the progress bar of the table while it is measured.
    """

    task: Task | None = None

    def made(self, what: str, *, reused: bool, seconds: float) -> None:
        """A model or a set of adversarial examples was computed or found in the cache."""

    def cell(self, row: Row, column: Column, accuracy: Accuracy, *, reused: bool) -> None:
        """A cell of the table was computed or found in the cache."""

    def warn(self, message: str) -> None:
        """Something was found damaged and is computed again."""
