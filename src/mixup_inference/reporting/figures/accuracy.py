"""Accuracy: overview of the table, clean against robust (Figure 3b), and training length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixup_inference.reporting.figures import style
from mixup_inference.reporting.figures.chart import Chart, Record, distinct, estimate, only
from mixup_inference.reporting.formatting import capitalize, format_settings
from mixup_inference.reporting.labels import defense_title, objective_title
from mixup_inference.reporting.schema import Analysis, Results
from mixup_inference.reporting.selection import differing_in, last_of_each_mode, objective_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The second panel shows the settings within this much of the highest clean accuracy.
NEAR = 0.1


def overview(results: Results) -> Chart:
    """Clean and robust accuracy of every row, with intervals."""
    rows = [
        {"method": row["title"], "group": row["group"], "column": column}
        | estimate(row["cells"][column])
        for column in last_of_each_mode(results["columns"])
        for row in results["rows"]
    ]
    height = 0.34 * len(results["rows"]) + 1.6
    return Chart("overview", results["title"], rows, _paint_overview, (8.5, height))


def _paint_overview(figure: Figure, rows: list[Record]) -> None:
    axes = figure.add_subplot()
    columns = distinct(rows, "column")
    methods = only(rows, column=columns[0])
    for number, (column, look) in enumerate(style.styles(rows, "column").items()):
        cells = only(rows, column=column)
        axes.errorbar(
            [100 * cell["value"] for cell in cells],
            [y + 0.2 * (number - (len(columns) - 1) / 2) for y in range(len(cells))],
            xerr=style.arms(cells, "value", "low", "high", 100),
            fmt=look.marker,
            color=look.colour,
            elinewidth=1.2,
            label=capitalize(column),
        )
    axes.set_yticks(range(len(methods)), [cell["method"] for cell in methods])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a dollar sign in a title is a dollar sign
    axes.set(xlim=(-1, 101), ylim=(len(methods) - 0.4, -0.6))
    axes.set_xlabel("accuracy (%), with 95% intervals")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    for y in range(1, len(methods)):
        if methods[y]["group"] != methods[y - 1]["group"]:
            axes.axhline(y - 0.5, color="#888888", linewidth=0.8)
    style.legend_below(figure, columns=4)


def training_length(results: Results) -> Chart | None:
    """Accuracy against epochs, for models whose trainings differ in nothing else."""
    lengths = differing_in(results, "epochs")
    epochs = max(lengths, key=lambda some: len(set(some.values())), default={})
    found = [row for row in results["rows"] if row["model"] in epochs]
    if not found:
        return None
    found.sort(key=lambda row: epochs[row["model"]])
    rows = []
    for column in last_of_each_mode(results["columns"]):
        for row in found:
            settings = format_settings(row.get("settings", {}))
            defense = f"{defense_title(row['defense'])} {settings}".strip()
            own = {"model": row["model"], "epochs": epochs[row["model"]], "defense": defense}
            rows.append(own | {"column": column} | estimate(row["cells"][column]))
    objective = objective_title(str(objective_of(results, next(iter(epochs)))))
    title = f"Accuracy against training length: {objective}"
    return Chart("training-length", title, rows, _paint_length, (8.5, 3.6))


def _paint_length(figure: Figure, rows: list[Record]) -> None:
    columns = distinct(rows, "column")
    (grid,) = figure.subplots(1, len(columns), squeeze=False)
    ticks = sorted(set(distinct(rows, "epochs")))
    for axes, column in zip(grid, columns, strict=True):
        for defense, look in style.styles(rows, "defense").items():
            some = only(rows, column=column, defense=defense)
            style.points(axes, some, look, x="epochs", label=defense, scale=100)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel="epochs", title=capitalize(column))
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    grid[0].set_ylabel("accuracy (%), with 95% intervals")
    style.legend_below(figure, columns=5)


def tradeoff(model: str, entry: Analysis) -> Chart:
    """Figure 3b: each defence's settings by clean and robust accuracy, and its Pareto front.

    Robust accuracy is the mean over the attacks; its interval is the mean of their intervals.
    """
    rows: list[Record] = []
    for defense, trials in entry["tradeoff"].items():
        for trial in trials:
            clean, attacked = trial["clean"], list(trial["attacked"].values())
            rows.append({
                "model": model,
                "defense": defense,
                "settings": format_settings(trial["settings"]),
                "clean": clean["accuracy"],
                "clean_low": clean["low"],
                "clean_high": clean["high"],
                "robust": trial["robust"],
                "robust_low": sum(cell["low"] for cell in attacked) / len(attacked),
                "robust_high": sum(cell["high"] for cell in attacked) / len(attacked),
                "on_front": trial["on_front"],
            })  # fmt: skip
    first = next(iter(entry["tradeoff"].values()))[0]
    attacks = " and ".join(first["attacked"])
    title = f"Clean against robust accuracy: {model}, {attacks} PGD-{entry['steps']}"
    return Chart(f"tradeoff-{model}", title, rows, _paint_tradeoff, (8.5, 4.8))


def _paint_tradeoff(figure: Figure, rows: list[Record]) -> None:
    """Draw all settings, and beside them those near the highest clean accuracy."""
    everything, detail = figure.subplots(1, 2)
    for axes in (everything, detail):
        for defense, look in style.styles(rows, "defense").items():
            _front(axes, only(rows, defense=defense), look, defense_title(defense))
        axes.set_xlabel("clean accuracy (%)")
    everything.set_title("all settings")
    everything.set_ylabel("robust accuracy (%), mean over the attacks")
    best = max(row["clean"] for row in rows)
    near = [100 * row["robust"] for row in rows if row["clean"] >= best - NEAR]
    detail.set_title(f"within {100 * NEAR:g} points of the highest clean accuracy")
    detail.set_xlim(100 * (best - NEAR) - 0.5, 100 * best + 1)
    detail.set_ylim(min(near) - 4, max(near) + 4)
    style.legend_below(figure, columns=5)


def _front(axes: Axes, rows: list[Record], look: style.SeriesStyle, label: str) -> None:
    """Draw a defence's settings with faint intervals; those on its front filled and joined."""
    for on_front in (False, True):
        some = sorted(only(rows, on_front=on_front), key=lambda row: (row["clean"], -row["robust"]))
        axes.errorbar(
            [100 * row["clean"] for row in some],
            [100 * row["robust"] for row in some],
            xerr=style.arms(some, "clean", "clean_low", "clean_high", 100),
            yerr=style.arms(some, "robust", "robust_low", "robust_high", 100),
            color=look.colour,
            ecolor=(look.colour, 0.25),
            elinewidth=0.8,
            marker=look.marker,
            markersize=6,
            markerfacecolor=look.colour if on_front else "white",
            linestyle=look.line if on_front else "",
            label=label if on_front else None,
        )
