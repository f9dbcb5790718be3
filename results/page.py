"""Fill the tables of docs/results.md from the results in this folder: `python results/page.py`.

A table stands between two comments, the first of which says what it shows: `paper 2 cifar10` the
rows of results/cifar10 beside those of the paper's Table 2, `claims cifar10 cifar10-figures` what
these runs say of the paper's claims, `adaptive cifar10-adaptive` attackers who know the defence.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from mixup_inference.reporting.findings import claims
from mixup_inference.reporting.tables import adaptive_lines

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with all its tables as the results are now."""
    return TABLE.sub(lambda found: f"{found[1]}{_table(found[2].split())}\n{found[3]}", text)


def _table(words: list[str]) -> str:
    kind, *names = words
    if kind == "paper":
        return beside(read(names[1]), paper(names[0]))
    if kind == "claims":
        return judged([read(name) for name in names])
    if kind == "adaptive":
        return "\n".join(adaptive_lines(read(names[0])["adaptive"]))
    raise ValueError(f"no table is called {kind!r}: paper, claims or adaptive.")


def read(name: str) -> dict[str, Any]:
    """The results of a folder."""
    found: dict[str, Any] = json.loads((HERE / name / "results.json").read_text())
    return found


def paper(table: str) -> dict[str, dict[str, str]]:
    """A table of the paper: method, column, what is printed there."""
    with (HERE / "paper.csv").open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file) if row["table"] == table}


def beside(results: dict[str, Any], theirs: dict[str, dict[str, str]]) -> str:
    """All rows of a run: accuracy in percent, half its 95% interval, the paper's in brackets."""
    columns = results["columns"]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in results["rows"]:
        printed = theirs.get(row["title"], {})
        cells = [_cell(row["cells"][column], printed.get(column)) for column in columns]
        lines.append(f"| {row['title']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(cell: dict[str, float], printed: str | None) -> str:
    half = 50 * (cell["high"] - cell["low"])
    ours = f"{100 * cell['accuracy']:.1f} ±{half:.1f}"
    return ours if printed is None else f"{ours} ({printed})"


def judged(runs: list[dict[str, Any]]) -> str:
    """Every claim that one of the runs has something to say about."""
    lines = ["| claim | where | verdict | measured |", "|---|---|---|---|"]
    for results in runs:
        lines += [
            f"| {c.claim} | {c.source} | **{c.verdict}** | {c.evidence} |" for c in claims(results)
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
