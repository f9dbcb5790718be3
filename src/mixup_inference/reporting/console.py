"""Progress on the terminal: the table, row by row, while it is being computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from mixup_inference.evaluation.callback import Callback, Column, Row
from mixup_inference.metrics.accuracy import Accuracy, cell_entry
from mixup_inference.reporting.adaptive import WARNING, verdict_lines
from mixup_inference.reporting.formatting import capitalize, format_margin, percent
from mixup_inference.reporting.schema import Adaptive
from mixup_inference.utils.text import plain_lines


class ConsoleCallback(Callback):
    """Print each finished part, and each row of the table when its cells are complete."""

    def __init__(self, console: Console, titles: Sequence[str], columns: list[Column]) -> None:
        self.console = console
        self.columns = columns
        self.computed = self.reused = 0
        self._title_width = max(map(len, titles))
        fits = console.width >= self._title_width + 12 * len(columns)
        self._margins = fits or len(columns) <= 3
        self._cell_width = 12 if self._margins or len(columns) < 5 else 8
        self._row: list[Accuracy] = []
        self._group: str | None = None

    def made(self, what: str, *, reused: bool, seconds: float) -> None:
        """Handle a finished model or set of adversarial examples."""
        self._count(reused=reused)
        if not reused:
            self.say(f"  {what}: {seconds:.1f} s", style="dim")

    def cell(self, row: Row, column: Column, accuracy: Accuracy, *, reused: bool) -> None:
        """Handle a finished cell; print the row when it is complete."""
        self._count(reused=reused)
        if column == self.columns[0]:
            self._row = []
        self._row.append(accuracy)
        if self.task is not None:
            so_far = "  ".join(percent(a.value) for a in self._row)
            self.task.advance(1, f"{row.title}: {so_far}")
        if len(self._row) == len(self.columns):
            self._print_row(row)

    def warn(self, message: str) -> None:
        """Print a warning, such as that a damaged part is recomputed."""
        self.say(f"warning: {message}", style="yellow")

    def verdicts(self, adaptive: Adaptive | None) -> None:
        """Print the verdicts under adaptive attacks, and failed checks as warnings."""
        for line in verdict_lines(adaptive):
            self.say(line, style="yellow" if line.startswith(WARNING) else "")

    def _count(self, *, reused: bool) -> None:
        self.reused += reused
        self.computed += not reused

    def _print_row(self, row: Row) -> None:
        if self._group is None:
            self._print_heading()
        elif row.group != self._group:
            self.say("─" * (self._title_width + self._cell_width * len(self.columns)), "dim")
        self._group = row.group
        shown = [
            format_margin(cell_entry(a)) if self._margins else percent(a.value, a.total)
            for a in self._row
        ]
        cells = "".join(text.rjust(self._cell_width) for text in shown)
        self.say(f"{row.title:<{self._title_width}}{cells}")

    def _print_heading(self) -> None:
        kinds = [(k, len(list(g))) for k, g in groupby(self.columns, key=lambda c: c.mode)]
        top = "".join(capitalize(kind).rjust(self._cell_width * n) for kind, n in kinds)
        named = (f"PGD-{c.steps}" if c.steps else "" for c in self.columns)
        steps = "".join(name.rjust(self._cell_width) for name in named)
        self.say(" " * self._title_width + top, "bold")
        if steps.strip():
            self.say(" " * self._title_width + steps, "bold")

    def say(self, text: str, style: str = "") -> None:
        """Print a line as it is."""
        print_line(self.console, text, style)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line without interpreting markup, however narrow the terminal."""
    console.print(
        plain_lines(text), style=style, highlight=False, soft_wrap=True, markup=False, emoji=False
    )
