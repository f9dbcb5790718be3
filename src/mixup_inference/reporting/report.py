"""All the files that a finished run leaves for people to read."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from mixup_inference.files import write_json, write_text
from mixup_inference.reporting.figures import overview
from mixup_inference.reporting.tables import as_csv, caption, heading, markdown, percent


def write_results(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write results.json and the table; returns the paths."""
    paths = [folder / name for name in ("results.json", "table.md", "table.csv")]
    write_json(paths[0], results)
    write_text(paths[1], markdown(results))
    write_text(paths[2], as_csv(results))
    return paths


def write_report(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write report.html; returns its path."""
    path = folder / "report.html"
    write_text(path, html(results))
    return [path]


def html(results: dict[str, Any]) -> str:
    """The report as one self-contained page; everything that comes from the spec is escaped."""
    from jinja2 import Environment, FileSystemLoader  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    kinds = groupby(results["columns"], key=lambda column: column.split(" ")[0])
    return environment.get_template("report.html").render(
        results=results,
        caption=caption(results),
        modes=[(heading(mode), len(list(columns))) for mode, columns in kinds],
        overview=overview(results),
        percent=percent,
    )
