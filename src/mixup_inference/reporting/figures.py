"""Figures, drawn from results.json's contents."""

from __future__ import annotations

import io
from typing import Any

from mixup_inference.reporting.tables import heading

# Okabe and Ito's colours, told apart with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")


def overview(results: dict[str, Any]) -> str:
    """Clean and attacked accuracy of every row with its interval, as SVG."""
    import matplotlib as mpl  # noqa: PLC0415 (slow to import)
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = _shown_columns(results)
    rows = results["rows"]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fixed", "font.size": 10}):
        figure = Figure(figsize=(8.5, 0.34 * len(rows) + 1.3), layout="constrained")
        axes = figure.add_subplot()
        for number, column in enumerate(shown):
            cells = [row["cells"][column] for row in rows]
            centre = [100 * c["accuracy"] for c in cells]
            arms = [
                [100 * (c["accuracy"] - c["low"]) for c in cells],
                [100 * (c["high"] - c["accuracy"]) for c in cells],
            ]
            heights = [y + 0.18 * (number - (len(shown) - 1) / 2) for y in range(len(rows))]
            axes.errorbar(
                centre,
                heights,
                xerr=arms,
                fmt=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=5,
                elinewidth=1.2,
                label=heading(column),
            )
        axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)  # a dollar sign in a title is a dollar sign
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(-1, 101)
        axes.set_xlabel("Accuracy (%), with 95% intervals")
        axes.grid(axis="x", color="#dddddd")
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for y in _group_ends(rows):
            axes.axhline(y, color="#888888", linewidth=0.8)
        figure.legend(loc="outside upper center", ncols=len(shown), frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _shown_columns(results: dict[str, Any]) -> list[str]:
    """Clean, and of each attack mode the one with the most steps."""
    last = {column.split(" ")[0]: column for column in results["columns"]}
    return list(last.values())


def _group_ends(rows: list[dict[str, Any]]) -> list[float]:
    """Where one group of rows ends and the next begins."""
    return [i - 0.5 for i in range(1, len(rows)) if rows[i]["group"] != rows[i - 1]["group"]]
