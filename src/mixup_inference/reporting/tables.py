"""The tables as Markdown, CSV, and lines for the terminal, all from results.json's contents."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from mixup_inference.metrics.accuracy import Estimate
from mixup_inference.reporting.adaptive import (
    attack_columns,
    cost,
    dashes,
    judged,
    signed,
    tally,
    verdict_lines,
)
from mixup_inference.utils.text import markdown_words, spreadsheet_cell

PASSES = ("forward", "backward")


def percent(share: float, total: float = 0) -> str:
    """A share as a percentage with one decimal; two, if it is one of 5,000 points or more.

    >>> percent(0.91734), percent(0.9173, total=10_000)
    ('91.7', '91.73')
    """
    return f"{100 * share:.{2 if total >= 5000 else 1}f}"


def with_interval(cell: dict[str, float]) -> str:
    """Accuracy and its 95% interval, in percent.

    >>> with_interval({"accuracy": 0.942, "low": 0.918, "high": 0.9593, "total": 500})
    '94.2 [91.8, 95.9]'
    """
    value, low, high = (percent(cell[k], cell["total"]) for k in ("accuracy", "low", "high"))
    return f"{value} [{low}, {high}]"


def with_margin(cell: dict[str, float]) -> str:
    """Accuracy and the longer arm of its 95% interval, in percent: short enough for a terminal.

    >>> with_margin({"accuracy": 0.942, "low": 0.918, "high": 0.9593, "total": 500})
    '94.2 ±2.4'
    """
    arm = max(cell["accuracy"] - cell["low"], cell["high"] - cell["accuracy"])
    return f"{percent(cell['accuracy'], cell['total'])} ±{math.ceil(1000 * arm - 1e-6) / 10:.1f}"


def heading(column: str) -> str:
    """A column's name with a capital."""
    return column[0].upper() + column[1:]


def last_of_each_mode(columns: Sequence[str]) -> list[str]:
    """Clean, and of each attack mode the column with the most steps, which stands last.

    >>> last_of_each_mode(["clean", "untargeted PGD-10", "untargeted PGD-50"])
    ['clean', 'untargeted PGD-50']
    """
    return list({column.split(" ")[0]: column for column in columns}.values())


def hardest(columns: Sequence[str]) -> list[str]:
    """Of each attack mode the column with the most steps."""
    return [column for column in last_of_each_mode(columns) if column != "clean"]


def in_points(gain: Estimate) -> str:
    """A difference in percentage points, with its interval.

    >>> in_points((0.134, 0.092, 0.175))
    '+13.4 points [+9.2, +17.5]'
    """
    value, low, high = (signed(number) for number in gain)
    return f"{value} points [{low}, {high}]"


def markdown(results: dict[str, Any]) -> str:
    """The tables with intervals, for a README or a paper's appendix."""
    columns = results["columns"]
    head = ["Method", *(markdown_words(heading(c)) for c in columns), "Passes per image"]
    rows = []
    for row in results["rows"]:
        cells = [with_interval(row["cells"][c]) for c in columns]
        rows.append([markdown_words(row["title"]), *cells, f"{row['passes_per_image']:.1f}"])
    lines = [
        f"# {markdown_words(results['title'])}",
        "",
        caption(results),
        "",
        *table_lines(head, rows),
    ]
    if results.get("adaptive"):
        lines += ["", *adaptive_lines(results["adaptive"])]
    return "\n".join(lines) + "\n"


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table's lines: words in the first column, numbers in all others."""
    written = (" | ".join(row) for row in (head, *rows))
    lines = [f"| {line} |" for line in written]
    return [lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]]


def adaptive_lines(adaptive: dict[str, Any]) -> list[str]:
    """The second table: attackers who know the defence, the verdicts and the failed checks."""
    columns = attack_columns(adaptive)
    total = {"total": adaptive["points"]}
    named = (f"{c.over}: {c.short}" if c.over else c.title for c in columns)
    head = ["Method", *(markdown_words(name) for name in named)]
    rows = []
    for number, row in enumerate(adaptive["rows"]):
        cells = [column.cells[number] for column in columns]
        told = [with_interval(cell | total) if cell else "\N{EN DASH}" for cell in cells]
        forward, backward = cost(row)
        passes = f"{forward:,.0f} / {backward:,.0f}"
        rows.append([markdown_words(row["title"]), *told, passes, tally(row)])
    return [
        "## Attackers who know the defence",
        "",
        judged(adaptive),
        "",
        *(f"- {markdown_words(line)}" for line in verdict_lines(adaptive)),
        "",
        *table_lines([*head, "Passes per point, forward / backward", "Checks"], rows),
        *(["", "A dash: not run. " + " ".join(dashes(adaptive))] if dashes(adaptive) else []),
    ]


def caption(results: dict[str, Any]) -> str:
    """What the table shows, in two sentences."""
    attack = results["spec"].get("attack")
    attackers = (
        "there is no attack. "
        if attack is None
        else f"the attacks know the undefended model only (oblivious, {attack['norm']}, eps "
        f"{attack['eps']:.4g}, step {attack['step']:.4g}, {attack['labels']} labels). "
    )
    return (
        f"Accuracy in percent on {results['points']['test']} test points, with 95% Wilson "
        f"intervals; {attackers}Randomised defences average {results['spec']['draws']} draws."
        + (
            " They draw from the test set, the test points and their labels included."
            if results["spec"]["data"].get("pool") == "test"
            else ""
        )
    )


def as_csv(results: dict[str, Any]) -> str:
    """The table with a column each for accuracy and the two ends of its interval (shares)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = ("", " low", " high")
    head = [f"{column}{end}" for column in results["columns"] for end in ends]
    writer.writerow(["method", "model", "defense", *head, "passes per image"])
    for row in results["rows"]:
        cells = [row["cells"][column] for column in results["columns"]]
        numbers = [f"{c[key]:.4f}" for c in cells for key in ("accuracy", "low", "high")]
        passes = f"{row['passes_per_image']:.2f}"
        words = [spreadsheet_cell(row[key]) for key in ("title", "model", "defense")]
        writer.writerow([*words, *numbers, passes])
    return out.getvalue()


def adaptive_csv(adaptive: dict[str, Any]) -> str:
    """One line for each row and attack, its clean accuracy and worst case among them (shares)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["row", "attack", "group", "accuracy", "low", "high", "any_draw", *PASSES, "seconds"]
    )
    for row in adaptive["rows"]:
        entries = [
            {"title": "clean", "group": "clean", "robust": row["clean"]},
            *row["attacks"],
            {"title": "worst case", "group": "worst", "robust": row["worst"]["robust"]},
        ]
        for entry in entries:
            robust = entry["robust"]
            shares = [robust[key] for key in ("accuracy", "low", "high")]
            numbers = [f"{share:.4f}" for share in (*shares, robust["any_draw"]["accuracy"])]
            spent = [entry.get(key, "") for key in (*PASSES, "seconds")]
            words = [
                spreadsheet_cell(word) for word in (row["title"], entry["title"], entry["group"])
            ]
            writer.writerow([*words, *numbers, *spent])
    return out.getvalue()
