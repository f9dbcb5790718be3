"""Progress reporting. The library itself stays silent.

A long job takes ``progress`` and opens a task on it; the command line passes one that draws
bars with an estimate of the time left, and a Python caller may pass ``RichProgress()``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from mixup_inference.utils.text import plain

#: A bar appears only for what takes longer than this many seconds.
PATIENCE = 2.0


class Task(Protocol):
    """One running job."""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Report that ``steps`` more units are done, perhaps with a note."""


class Progress(Protocol):
    """Opens tasks."""

    def task(self, title: str, total: int) -> AbstractContextManager[Task]:
        """A job of ``total`` units, for as long as the context lasts."""


class _Silent:
    """Report nothing."""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Do nothing."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:  # noqa: ARG002
        """Open a task that says nothing."""
        yield self


SILENT: Progress = _Silent()


class _Bar:
    """A rich bar that appears once its task has lasted PATIENCE seconds."""

    def __init__(self, bars: Any, title: str, total: int) -> None:
        self._bars = bars
        self.id = bars.add_task(plain(title), total=total, note="", visible=False)
        self._start = time.monotonic()

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Move the bar on."""
        late = time.monotonic() - self._start > PATIENCE
        fields = {} if note is None else {"note": plain(note)}
        self._bars.update(self.id, advance=steps, visible=late, **fields)


class RichProgress:
    """Bars on the terminal with an estimate of the time left; silent when there is no terminal."""

    def __init__(self, console: Any = None) -> None:
        from rich import progress as rich  # noqa: PLC0415 (only whoever wants bars pays for them)
        from rich.console import Console  # noqa: PLC0415

        self.console = console or Console(stderr=True)
        self.bars = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(bar_width=24),
            rich.TaskProgressColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:
        """A bar that shows up after PATIENCE seconds and goes away when its job is done."""
        bar = _Bar(self.bars, title, total)
        self.bars.start()  # does nothing if they are there already
        try:
            yield bar
        finally:
            self.bars.remove_task(bar.id)
            if not self.bars.tasks:
                self.bars.stop()
