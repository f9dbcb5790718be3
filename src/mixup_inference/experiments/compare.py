"""Two runs of the same experiment, point by point: where did the labels come out differently?

Batch sizes, chunks, engines and processors round differently, and that decides only where two
classes nearly tie. Whoever repeats a run elsewhere sees here that nothing else differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mixup_inference.errors import InputError
from mixup_inference.experiments.run_directory import Run
from mixup_inference.utils.io import read_checked_json


@dataclass(frozen=True)
class Switch:
    """A point with another label in each of two runs, and by how much each of them won.

    ``point`` counts the test points of the experiment from 0; margins are differences of
    log-probabilities, None where they are infinite.
    """

    row: str
    column: str
    point: int
    labels: tuple[int, int]
    margins: tuple[float | None, float | None]


@dataclass(frozen=True)
class Comparison:
    """All labels that two runs have for the same rows, columns and points."""

    compared: int
    switches: list[Switch]

    @property
    def widest(self) -> float:
        """The widest margin that was switched in spite of it, of the two of each point."""
        margins = [margin for switch in self.switches for margin in switch.margins]
        return max((math.inf if margin is None else margin for margin in margins), default=0.0)


def compare_runs(one: Run, two: Run) -> Comparison:
    """Compare the labels in two finished runs, wherever both have a row and a column."""
    files = [_parts(run) for run in (one, two)]
    compared, switches = 0, []
    for row, column in (place for place in files[0] if place in files[1]):
        first = _answers(one, files[0][row, column])
        second = _answers(two, files[1][row, column])
        if _points(first) != _points(second):
            raise InputError(f"{one.folder} and {two.folder} measured other points ({row}).")
        labels, margins = (
            list(zip(first["value"][name], second["value"][name], strict=True))
            for name in ("labels", "margins")
        )
        compared += len(labels)
        switches += [
            Switch(row, column, point, labels[point], margins[point])
            for point in range(len(labels))
            if labels[point][0] != labels[point][1]
        ]
    if not compared:
        raise InputError(f"{one.folder} and {two.folder} have no row and column in common.")
    return Comparison(compared, switches)


def _parts(run: Run) -> dict[tuple[str, str], str]:
    """In which file the answers of each row and column are."""
    if run.results is None:
        raise InputError(f"{run.folder} is not a finished run: it has no whole results.json.")
    parts = {
        (row["title"], column): cell.get("part")
        for row in run.results["rows"]
        for column, cell in row["cells"].items()
    }
    if None in parts.values():
        raise InputError(f"{run.folder} is of a version that did not keep the labels of points.")
    return parts


def _answers(run: Run, part: str) -> dict[str, Any]:
    document = read_checked_json(run.folder / part)
    if not isinstance(document.get("value"), dict) or "labels" not in document["value"]:
        raise InputError(f"{run.folder / part} holds no labels.")
    return document


def _points(answers: dict[str, Any]) -> Any:
    """Which points they are about: a hash of the images."""
    of = answers["identity"]["input"]
    return of if isinstance(of, str) else of["points"]
