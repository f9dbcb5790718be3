"""The HTML pages; the templates escape everything that comes from a spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mixup_inference.reporting.adaptive import adaptive_section, format_check
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.figures import draw, linearity
from mixup_inference.reporting.figures.chart import inline
from mixup_inference.reporting.formatting import capitalize, format_eps, format_settings, percent
from mixup_inference.reporting.labels import in_worst_case, why_missing
from mixup_inference.reporting.schema import Analysis, Results, Theory
from mixup_inference.reporting.selection import nearest
from mixup_inference.reporting.summary import best, summary
from mixup_inference.reporting.tables import caption


def render_report(results: Results, figures: Mapping[str, str]) -> str:
    """The report of one run, with its figures as SVG elements by name."""
    models = results.get("figures") or {}
    adaptive = results.get("adaptive")
    return _render(
        "report.html",
        results=results,
        caption=caption(results),
        summary=summary(results),
        claims=claims(results),
        best=best(results),
        adaptive=adaptive,
        section=adaptive_section(adaptive) if adaptive else None,
        columns=results["columns"],
        models=models,
        has=_sections(models),
        figures=figures,
    )


def _sections(models: Mapping[str, Analysis]) -> dict[str, bool]:
    """Which sections have data of at least one model."""
    entries = models.values()
    return {
        "theory": any(entry["theory"] for entry in entries),
        "detection": any(entry["detection"]["scores"] for entry in entries),
        "tradeoff": any(entry.get("tradeoff") for entry in entries),
        "gallery": any(entry.get("gallery") for entry in entries),
    }


def render_comparison(runs: Sequence[Results]) -> str:
    """Several runs in one table, and their linearity side by side."""
    named = list(zip(run_names(runs), runs, strict=True))
    rows = [
        {**row, "title": f"{name}: {row['title']}", "group": (name, row["group"])}
        for name, run in named
        for row in run["rows"]
    ]
    figures = {}
    for number, (name, run) in enumerate(named):
        if models := run.get("figures"):
            chart = linearity(models, name=f"linearity-{number}", of=f": {name}")
            figures[name] = inline(chart, draw(chart, png=False))
    return _render(
        "comparison.html",
        runs=[(name, run, caption(run)) for name, run in named],
        rows=rows,
        columns=union(run["columns"] for run in runs),
        figures=figures,
    )


def run_names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The runs' names, numbered where they repeat.

    >>> run_names([{"name": "a"}, {"name": "b"}, {"name": "a"}])
    ['a', 'b', 'a (2)']
    """
    names = [run["name"] for run in runs]
    seen = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [f"{n} ({count})" if count > 1 else n for n, count in zip(names, seen, strict=True)]


def union(several: Iterable[Sequence[str]]) -> list[str]:
    """The columns of several tables: modes in order of appearance, fewer steps first.

    >>> union([["clean", "untargeted PGD-50"], ["clean", "untargeted PGD-10", "targeted PGD-10"]])
    ['clean', 'untargeted PGD-10', 'untargeted PGD-50', 'targeted PGD-10']
    """
    columns = list(dict.fromkeys(column for part in several for column in part))
    modes = list(dict.fromkeys(_mode(column) for column in columns))
    return sorted(columns, key=lambda column: (modes.index(_mode(column)), _steps(column)))


def _mode(column: str) -> str:
    return column.split(" ", maxsplit=1)[0]


def _steps(column: str) -> int:
    return int(column.rpartition("PGD-")[2]) if " " in column else 0


def modes(columns: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The columns under each attack mode, for a heading of two lines."""
    return [(capitalize(mode), list(some)) for mode, some in groupby(columns, key=_mode)]


def ratios(entry: Analysis, attack: str) -> list[dict[str, Theory]]:
    """For each lam, the analyses of both kinds under one attack."""
    some = [found for found in entry["theory"] if found["attack"] == attack]
    lams = dict.fromkeys(found["lam"] for found in some)
    return [{found["kind"]: found for found in some if found["lam"] == lam} for lam in lams]


def _render(template: str, **context: Any) -> str:
    from jinja2 import Environment, FileSystemLoader  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    called = (in_worst_case, modes, nearest, percent, ratios, why_missing)
    formats = (format_check, format_eps, format_settings)
    environment.globals |= {function.__name__: function for function in (*called, *formats)}
    return environment.get_template(template).render(**context)
