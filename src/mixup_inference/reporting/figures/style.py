"""The common style of all figures: series differ in colour, marker and line style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RC: Any = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and line style of a series."""

    colour: str
    marker: str
    line: Any = "-"


# Okabe and Ito's colours, which are safe for colour-blind readers.
BLUE = SeriesStyle("#0072B2", "o", "-")
RED = SeriesStyle("#D55E00", "s", "--")
GREEN = SeriesStyle("#009E73", "^", "-.")
PINK = SeriesStyle("#CC79A7", "D", ":")
ORANGE = SeriesStyle("#E69F00", "v", (0, (5, 1, 1, 1, 1, 1)))
SKY = SeriesStyle("#56B4E9", "P", (0, (3, 1)))
BLACK = SeriesStyle("#000000", "X", (0, (1, 1)))
GREY = SeriesStyle("#777777", "*", (0, (6, 2, 2, 2)))
SERIES_STYLES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK, GREY)


def series_style(number: int) -> SeriesStyle:
    """The style of the n-th series."""
    return SERIES_STYLES[number % len(SERIES_STYLES)]


def distinct(rows: Iterable[dict[str, Any]], key: str) -> list[Any]:
    """The values of a key in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def only(rows: Iterable[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def accuracy_row(cell: Mapping[str, Any]) -> dict[str, float]:
    """An accuracy of results.json and its interval, for a row of chart data."""
    return {"value": cell["accuracy"], "low": cell["low"], "high": cell["high"]}


def points(
    axes: Axes,
    rows: Sequence[dict[str, Any]],
    style: SeriesStyle,
    *,
    x: str,
    label: str | None = None,
    line: Any = "",
    scale: float = 1.0,
    hollow: bool = False,
    shift: float = 0.0,
) -> None:
    """Draw values with their intervals; ``shift`` moves them aside where they would overlap."""
    axes.errorbar(
        [row[x] + shift for row in rows],
        [scale * row["value"] for row in rows],
        yerr=arms(rows, "value", "low", "high", scale),
        color=style.colour,
        marker=style.marker,
        linestyle=line,
        markerfacecolor="white" if hollow else style.colour,
        elinewidth=1.1,
        capsize=2,
        label=label,
    )


def arms(
    rows: Sequence[dict[str, Any]], value: str, low: str, high: str, scale: float = 1.0
) -> list[list[float]]:
    """The two arms of each interval, for error bars."""
    below = [scale * max(0.0, row[value] - row[low]) for row in rows]
    above = [scale * max(0.0, row[high] - row[value]) for row in rows]
    return [below, above]


def line(
    axes: Axes, rows: Sequence[dict[str, Any]], style: SeriesStyle, *, label: str | None = None
) -> None:
    """Draw computed values over lam, which have no interval."""
    lam, value = ([row[key] for row in rows] for key in ("lam", "value"))
    (drawn,) = axes.plot(lam, value, color=style.colour, linestyle=style.line, label=label)
    if len(rows) == 1:  # a line through one value would be invisible
        drawn.set(marker="_", markersize=24)


def zero(axes: Axes, y: float = 0.0) -> None:
    """Draw a thin reference line."""
    axes.axhline(y, color="#888888", linewidth=0.8, zorder=0)


def panels_by(
    figure: Figure, rows: Iterable[dict[str, Any]], key: str
) -> Iterator[tuple[Axes, Any]]:
    """Yield panels side by side with common axes, one for each value of a key, its title."""
    values = distinct(rows, key)
    (grid,) = figure.subplots(1, len(values), sharex=True, sharey=True, squeeze=False)
    for axes, value in zip(grid, values, strict=True):
        axes.set_title(value)
        yield axes, value


def legend_below(figure: Figure, *, columns: int) -> None:
    """Draw one legend for all panels, that of the first, below them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def lam_axis(axes: Axes) -> None:
    """Set up the axis of the mixing ratio, from 0 to 1."""
    axes.set_xlim(0, 1.03)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
    axes.set_xlabel("mixing ratio λ")
