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

from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.tables import adaptive_lines, table_lines, with_margin

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
    """All rows of a run: accuracy in percent, the longer arm of its 95% interval, the paper's."""
    rows = []
    for row in results["rows"]:
        printed = theirs.get(row["title"], {})
        cells = [
            with_margin(row["cells"][c]) + (f" ({printed[c]})" if c in printed else "")
            for c in results["columns"]
        ]
        rows.append([row["title"], *cells])
    return "\n".join(table_lines(["", *results["columns"]], rows))


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
