"""What figures are drawn with: series that differ in colour, marker and line, panels, legends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

from mixup_inference.reporting.figures.chart import Record, distinct, only

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def styles(rows: list[Record], key: str) -> dict[Any, SeriesStyle]:
    """The style of each series, which are told apart by the values of a key."""
    return dict(zip(distinct(rows, key), cycle(SERIES_STYLES), strict=False))


def points(
    axes: Axes,
    rows: Sequence[Record],
    style: SeriesStyle,
    *,
    x: str = "lam",
    label: str | None = None,
    line: bool = True,
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
        linestyle=style.line if line else "",
        markerfacecolor="white" if hollow else style.colour,
        elinewidth=1.1,
        capsize=2,
        label=label,
    )


def arms(
    rows: Sequence[Record], value: str, low: str, high: str, scale: float
) -> list[list[float]]:
    """The two arms of each interval, for error bars."""
    below = [scale * max(0.0, row[value] - row[low]) for row in rows]
    above = [scale * max(0.0, row[high] - row[value]) for row in rows]
    return [below, above]


def line(axes: Axes, rows: list[Record], style: SeriesStyle, *, label: str | None = None) -> None:
    """Draw computed values over lam, which have no interval."""
    lam, value = ([row[key] for row in rows] for key in ("lam", "value"))
    (drawn,) = axes.plot(lam, value, color=style.colour, linestyle=style.line, label=label)
    if len(rows) == 1:  # a line through one value would be invisible
        drawn.set(marker="_", markersize=24)


def zero(axes: Axes, y: float = 0.0) -> None:
    """Draw a thin reference line."""
    axes.axhline(y, color="#888888", linewidth=0.8, zorder=0)


def panels(
    figure: Figure,
    rows: list[Record],
    across: str,
    down: str = "model",
    *,
    ylabel: str,
    sharey: Any = True,
) -> Iterator[tuple[Axes, list[Record]]]:
    """Yield panels and the rows of each: a column for each value of one key, a line of another.

    Their axes are common, and labelled only at the left and below.
    """
    columns, lines = distinct(rows, across), distinct(rows, down)
    grid = figure.subplots(len(lines), len(columns), sharex=True, sharey=sharey, squeeze=False)
    for axes, (below, beside) in zip(grid.flat, product(lines, columns), strict=True):
        yield axes, only(rows, **{down: below, across: beside})
    for axes in grid.flat:
        axes.set_ylabel(ylabel)
        axes.label_outer()


def legend_below(figure: Figure, *, columns: int) -> None:
    """Draw one legend for all panels, that of the first, below them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def lam_axis(axes: Axes) -> None:
    """Set up the axis of the mixing ratio, from 0 to 1."""
    axes.set_xlim(0, 1.03)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
    axes.set_xlabel("mixing ratio λ")
