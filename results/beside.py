"""Our numbers beside the paper's: `python results/beside.py 2 runs/cifar10/results.json`.

Prints a Markdown table: accuracy in percent with its 95% interval, and the paper's in brackets.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

PAPER = Path(__file__).parent / "paper.csv"


def paper(table: str) -> dict[str, dict[str, str]]:
    """A table of the paper: method, column, what is printed there."""
    with PAPER.open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file) if row["table"] == table}


def beside(results: dict[str, Any], table: str) -> str:
    """All rows of a run; those that the paper has with its numbers."""
    theirs, columns = paper(table), results["columns"]
    lines = [
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for row in results["rows"]:
        printed = theirs.get(row["title"], {})
        cells = [_cell(row["cells"][column], printed.get(column)) for column in columns]
        lines.append(f"| {row['title']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(cell: dict[str, float], printed: str | None) -> str:
    half = 50 * (cell["high"] - cell["low"])
    ours = f"{100 * cell['accuracy']:.1f} ±{half:.1f}"
    return ours if printed is None else f"{ours} ({printed})"


if __name__ == "__main__":
    print(beside(json.loads(Path(sys.argv[2]).read_text()), sys.argv[1]))
