"""Attackers who know the defence: accuracy over samples (Figure 4), examples (Figure 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mixup_inference.reporting.figures.chart import Chart, Row
from mixup_inference.reporting.figures.gallery import gallery_width, paint_gallery, shown_rows
from mixup_inference.reporting.figures.style import (
    BLUE,
    GREEN,
    RED,
    Look,
    distinct,
    legend_below,
    measured,
    only,
    points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE = "base"
#: The curves of Figure 4 in the order of their legend; only the base's line is dashed.
CURVES: dict[str, tuple[str, Look]] = {
    "official": ("official code", replace(GREEN, line=":")),
    "paper": ("paper's formula (Eq. 24)", replace(BLUE, line="-.")),
    "eot": ("EOT, through the defence", replace(RED, line="-")),
}
GREY = "#444444"
SHOWN = ("clean", "perturbation", "adversarial")


def adaptive_charts(adaptive: dict[str, Any]) -> list[Chart]:
    """Figure 4 for each row that has it, by number, and Figure 5."""
    found = [
        samples(f"samples-{number}", entry) for number, entry in enumerate(adaptive["samples"], 1)
    ]
    shown = adaptive["gallery"]
    return found + ([examples(shown)] if shown and shown["entries"] else [])


def samples(name: str, entry: dict[str, Any]) -> Chart:
    """Figure 4: accuracy over the number of adaptive samples, and the model's without defence."""
    rows: list[Row] = [
        {
            "defense": entry["title"],
            "attack": attack,
            "samples": one["samples"],
            **measured(one["robust"]),
        }
        for attack, curve in entry["curves"].items()
        for one in curve
    ]
    if entry["base"]:
        base = {"defense": entry["base"]["title"], "attack": BASE, "samples": None}
        rows.append(base | measured(entry["base"]["robust"]))
    count = next(one["robust"]["points"] for curve in entry["curves"].values() for one in curve)
    under = f"PGD-{entry['steps']}, {count} points"
    title = f"Accuracy over adaptive samples: {entry['title']}, {under}"
    return Chart(name, title, rows, _paint_samples, (6.4, 4.4))


def _paint_samples(figure: Figure, rows: list[Row]) -> None:
    axes = figure.add_subplot()
    for row in only(rows, attack=BASE):
        axes.axhspan(100 * row["low"], 100 * row["high"], color=GREY, alpha=0.12, linewidth=0)
        axes.axhline(100 * row["value"], color=GREY, linestyle="--", label="without defence")
    measured = [row for row in rows if row["attack"] != BASE]
    attacks = sorted(distinct(measured, "attack"), key=[*CURVES].index)
    for number, attack in enumerate(attacks):
        label, style = CURVES[attack]
        aside = 1.03 ** (number - (len(attacks) - 1) / 2)
        some = [row | {"x": aside * row["samples"]} for row in only(rows, attack=attack)]
        points(axes, some, style, x="x", label=label, line=style.line, scale=100)
    _sample_axis(axes, sorted(distinct(measured, "samples")))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_ylabel("accuracy (%), with 95% intervals")
    legend_below(figure, axes, columns=2)


def _sample_axis(axes: Axes, numbers: list[int]) -> None:
    """Twice as many samples are one step to the right; 0 has a place too."""
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("adaptive samples per step")


def examples(found: dict[str, Any]) -> Chart:
    """Figure 5: examples of an attack that knows the defence, one per column."""
    common = {"defense": found["title"], "attack": found["attack"], "eps": found["eps"]}
    rows = [row for entry in found["entries"] for row in shown_rows(entry, SHOWN, **common)]
    title = f"Adaptive examples: {found['title']}, {found['attack']}, eps {found['eps']:.4g}"
    size = gallery_width(found["entries"]), 5.6
    return Chart("adaptive-examples", title, rows, paint_gallery, size)
