"""A figure with its data, and the files written for it."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixup_inference.reporting.formatting import csv_text
from mixup_inference.utils.io import atomic_write, write_json, write_text
from mixup_inference.utils.text import spreadsheet_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
DPI = 200
#: The common style of all figures.
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
class Chart:
    """A figure before it is drawn: ``paint`` draws the rows into an empty figure."""

    name: str  # of its files
    title: str
    rows: list[Record]  # tidy: one observation each, all with the same keys
    paint: Callable[[Figure, list[Record]], None]
    size: tuple[float, float]  # inches

    @property
    def file(self) -> str:
        """The name as a safe file name and HTML attribute."""
        return re.sub(r"[^A-Za-z0-9._+-]", "-", self.name)[:200]


def distinct(rows: Iterable[Record], key: str) -> list[Any]:
    """The values of a key in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def only(rows: Iterable[Record], **wanted: Any) -> list[Record]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def estimate(found: Mapping[str, Any], key: str = "accuracy") -> Record:
    """A value of results.json and its interval, for a row of chart data."""
    return {"value": found[key], "low": found["low"], "high": found["high"]}


@dataclass(frozen=True)
class Drawing:
    """A drawn chart."""

    svg: str
    png: bytes


def draw(chart: Chart, *, png: bool = True) -> Drawing:
    """Draw a chart. The same rows give the same bytes: no dates, no random identifiers.

    The canvases are called directly, because ``savefig`` lays out and draws everything twice.
    """
    import matplotlib as mpl  # noqa: PLC0415 (slow to import)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415

    vector, raster = io.StringIO(), io.BytesIO()
    with mpl.rc_context({**RC, "svg.hashsalt": chart.name}):
        figure = Figure(figsize=chart.size)
        raster_canvas: Any = FigureCanvasAgg(figure)
        title = textwrap.fill(chart.title, int(9 * chart.size[0]))
        figure.suptitle(title, fontsize=11, fontweight="bold", parse_math=False)
        chart.paint(figure, chart.rows)
        ConstrainedLayoutEngine(h_pad=0.07, w_pad=0.07).execute(figure)
        if png:
            figure.dpi = DPI
            raster_canvas.print_png(raster, metadata={"Software": None})
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        vector_canvas: Any = FigureCanvasSVG(figure)
        vector_canvas.print_svg(vector, metadata=nothing)
    return Drawing(vector.getvalue(), raster.getvalue())


def write_chart(chart: Chart, drawing: Drawing, folder: Path) -> list[Path]:
    """Write NAME.svg, NAME.png, and the data as NAME.json and NAME.csv; returns the paths."""
    paths = [folder / f"{chart.file}.{kind}" for kind in ("svg", "png", "json", "csv")]
    write_text(paths[0], drawing.svg)
    with atomic_write(paths[1]) as temporary:
        temporary.write_bytes(drawing.png)
    write_json(paths[2], {"name": chart.name, "title": chart.title, "rows": chart.rows})
    write_text(paths[3], as_csv(chart.rows))
    return paths


def as_csv(rows: list[Record]) -> str:
    """The rows with their keys as a heading."""
    head = list(rows[0]) if rows else []
    return csv_text([head, *([spreadsheet_cell(row[key]) for key in head] for row in rows)])


def inline(chart: Chart, drawing: Drawing) -> str:
    """The SVG as an element of a page, with a label for screen readers and unique identifiers."""
    from markupsafe import escape  # noqa: PLC0415

    text = drawing.svg[drawing.svg.index("<svg") :]
    text = re.sub(r"<[^>]+>", lambda tag: _own_identifiers(tag[0], chart.file), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(chart.title)}" ', 1)


def _own_identifiers(tag: str, name: str) -> str:
    """Prefix the identifiers of a tag, and its references to identifiers, with a name.

    >>> _own_identifiers('<use xlink:href="#m1" clip-path="url(#p2)" id="u"/>', "a")
    '<use xlink:href="#a-m1" clip-path="url(#a-p2)" id="a-u"/>'
    """
    return re.sub(r'(\bid="|href="#|url\(#)', lambda found: f"{found[0]}{name}-", tag)
