"""The files that a finished run writes for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mixup_inference.reporting.figures import charts, draw, write_chart
from mixup_inference.reporting.figures.chart import inline
from mixup_inference.reporting.pages import render_comparison, render_report
from mixup_inference.reporting.schema import Results
from mixup_inference.reporting.tables import adaptive_csv, as_csv, markdown
from mixup_inference.utils.io import add_checksum, add_checksums, write_json, write_text


def write_results(results: Results, folder: Path) -> list[Path]:
    """Write results.json and the tables; returns the paths."""
    paths = [folder / name for name in ("results.json", "table.md", "table.csv")]
    write_json(paths[0], add_checksum(results))
    write_text(paths[1], markdown(results))
    write_text(paths[2], as_csv(results))
    if adaptive := results.get("adaptive"):
        paths.append(folder / "adaptive.csv")
        write_text(paths[3], adaptive_csv(adaptive))
    else:
        (folder / "adaptive.csv").unlink(missing_ok=True)  # of an earlier run
    add_checksums(folder, paths)
    return paths


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write report.html, and figures/ with each figure and its data; returns the paths."""
    figures, paths = {}, []
    for chart in charts(results):
        drawing = draw(chart)
        figures[chart.name] = inline(chart, drawing)
        paths += write_chart(chart, drawing, folder / "figures")
    path = folder / "report.html"
    write_text(path, render_report(results, figures))
    add_checksums(folder, [path, *paths])
    return [path, *paths]


def html(results: Results) -> str:
    """The report as one self-contained page."""
    drawn = {chart.name: inline(chart, draw(chart, png=False)) for chart in charts(results)}
    return render_report(results, drawn)


def write_comparison(runs: Sequence[Results], path: Path) -> Path:
    """Write several runs' results side by side as one self-contained page."""
    write_text(path, render_comparison(runs))
    return path
