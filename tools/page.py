"""Fill the tables of the README and of the results pages from results/, and draw their figures.

A table stands between two comments, the first of which says what it shows:

- `summary cifar10-adaptive-500`: clean, oblivious and adaptive accuracy of every row;
- `paper 2 cifar10`: the rows of results/cifar10 beside those of the paper's Table 2;
- `conventions 2 cifar10 cifar10-official`: the rows that two runs share, and the paper's;
- `rows cifar10-study`: rows that the paper does not have;
- `walk mi-ol`: from the paper's numbers to ours, one change at a time, as results/walks.toml says;
- `claims cifar10 cifar10-figures`: what these runs say of the paper's claims;
- `adaptive cifar10-adaptive`: adaptive attacks;
- `detection cifar10-study 0.5`: AUC of the detectors at this lambda, deviation from linearity;
- `shrinkage cifar10`: accuracy on parts of a perturbation;
- `field digits-field`: all defences on all models;
- `detectors digits-field`: all detectors under attack;
- `serving`: requests a second and latencies, of benchmarks/serving.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixup_inference.metrics.accuracy import mean_interval
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.figures import charts, draw
from mixup_inference.reporting.formatting import format_margin, format_mean, percent
from mixup_inference.reporting.tables import adaptive_lines, table_lines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURES = ROOT / "docs" / "pictures"
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/results.md",
    ROOT / "docs/serving.md",
    *sorted(ROOT.glob("docs/results/*.md")),
]
#: Figures that the pages show, as docs/pictures/RUN-FIGURE.png.
FIGURES = {
    "cifar10-figures": ("tradeoff-mixup", "auc-mixup"),
    "cifar10-adaptive": ("samples-2",),
    "cifar10-epochs": ("training-length",),
}
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with all its tables as the results are now."""
    return TABLE.sub(lambda found: f"{found[1]}{_table(found[2].split())}\n{found[3]}", text)


def _table(words: list[str]) -> str:
    kind, *names = words
    made: dict[str, Callable[..., str]] = {
        "summary": lambda *runs: summary([read(run) for run in runs]),
        "paper": lambda number, run: beside(read(run), paper(number)),
        "conventions": lambda n, ours, theirs: conventions(read(ours), read(theirs), paper(n)),
        "rows": lambda run: beside(read(run), {}),
        "walk": walk,
        "claims": lambda *runs: judged([read(run) for run in runs]),
        "adaptive": lambda run: adaptive(read(run)),
        "detection": lambda run, lam: detected(read(run), float(lam)),
        "field": lambda run: field(read(run)),
        "detectors": lambda run: detectors(read(run)),
        "serving": lambda: served(json.loads((ROOT / "benchmarks/serving.json").read_text())),
        "shrinkage": lambda run: shrunk(read(run, "shrinkage.json"), read(run)),
    }
    if kind not in made:
        raise ValueError(f"no table is called {kind!r}: {', '.join(made)}.")
    return made[kind](*names)


def read(name: str, file: str = "results.json") -> Any:
    """The results in a folder."""
    return json.loads((RESULTS / name / file).read_text())


def paper(table: str) -> dict[str, dict[str, str]]:
    """A table of the paper: method, column, what is printed there."""
    with (RESULTS / "paper.csv").open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file) if row["table"] == table}


def beside(results: dict[str, Any], theirs: dict[str, dict[str, str]]) -> str:
    """All rows of a run: accuracy in percent, the longer arm of its 95% interval, the paper's."""
    columns = results["columns"]
    rows = []
    for row in results["rows"]:
        cells = [format_margin(row["cells"][c]) for c in columns]
        rows.append([row["title"], *_with_paper(cells, columns, theirs.get(row["title"], {}))])
    return "\n".join(table_lines(["", *columns], rows))


def conventions(
    ours: dict[str, Any], theirs: dict[str, Any], printed: dict[str, dict[str, str]]
) -> str:
    """The rows that two runs share, in the columns that they share, and the paper's in brackets."""
    columns = [column for column in ours["columns"] if column in theirs["columns"]]
    cells = {row["title"]: row["cells"] for row in theirs["rows"]}
    rows = []
    for row in ours["rows"]:
        if (other := cells.get(row["title"])) is not None:
            both = [
                f"{format_margin(row['cells'][c])} / {format_margin(other[c])}" for c in columns
            ]
            rows.append([row["title"], *_with_paper(both, columns, printed.get(row["title"], {}))])
    return "\n".join(table_lines(["ours / theirs (paper)", *columns], rows))


def walk(name: str) -> str:
    """From the paper's numbers to ours: a line for each change, the accuracies of some rows."""
    plan = tomllib.loads((RESULTS / "walks.toml").read_text(encoding="utf-8"))[name]
    measures = plan["columns"]
    rows = []
    for step in plan["steps"]:
        titles = step.get("rows", plan.get("rows", []))
        if "printed" in step:
            cells = step["printed"]
        elif "paper" in step:
            table = paper(str(step["paper"]))
            cells = [" / ".join(table[title][c] for c in measures) for title in titles]
        elif "model" in step:
            cells = _areas(read(step["run"]), step["model"], measures)
        else:
            found = {row["title"]: row["cells"] for row in read(step["run"])["rows"]}
            cells = [
                " / ".join(percent(found[title][c]["accuracy"]) for c in measures)
                for title in titles
            ]
        rows.append([step["change"], *cells])
    return "\n".join(table_lines(["", *plan["head"]], rows))


def _areas(results: dict[str, Any], model: str, measures: list[str]) -> list[str]:
    """The AUC of scores at lambda 0.5, such as that of "MI-PL, untargeted"."""
    found = {
        f"{s['score']}, {s['attack']}": f"{s['auc']:.2f} [{s['low']:.2f}, {s['high']:.2f}]"
        for s in results["figures"][model]["detection"]["scores"]
        if s["lam"] in (None, 0.5)
    }
    return [found[measure] for measure in measures]


def _with_paper(cells: list[str], columns: list[str], printed: dict[str, str]) -> list[str]:
    """Cells with what the paper has there in brackets, if it has."""
    return [
        f"{cell} ({printed[column]})" if column in printed else cell
        for cell, column in zip(cells, columns, strict=True)
    ]


def shrunk(entries: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """Accuracy in percent by model, attack and part of the perturbation."""
    titles = _undefended(results)
    parts = list(dict.fromkeys(entry["part"] for entry in entries))
    found: dict[str, dict[float, str]] = {}
    for entry in entries:
        title = f"{titles[entry['model']]}, {entry['attack']}"
        found.setdefault(title, {})[entry["part"]] = percent(entry["accuracy"])
    rows = [[title, *(cells[part] for part in parts)] for title, cells in found.items()]
    return "\n".join(table_lines(["part of the perturbation", *map("{:g}".format, parts)], rows))


def adaptive(results: dict[str, Any]) -> str:
    """The adaptive attacks of a run, without the heading: the page has its own."""
    heading, _, *lines = adaptive_lines(results["adaptive"])
    assert heading.startswith("#")
    return "\n".join(lines)


def summary(runs: list[dict[str, Any]]) -> str:
    """Clean, oblivious and adaptive accuracy of every row, in percent."""
    head = ["accuracy (%)", "clean", "oblivious attack", "adaptive attacks", "adaptive, five tries"]
    rows = []
    for results in runs:
        data = results["spec"]["data"]["name"].replace("cifar", "CIFAR-")
        for row in results["adaptive"]["rows"]:
            (oblivious,) = (a["robust"] for a in row["attacks"] if a["group"] == "oblivious")
            worst = row["worst"]["robust"]
            cells = (row["clean"], oblivious, worst, worst["any_draw"])
            title = f"{data}: {row['title']}"
            rows.append([title, *(percent(cell["accuracy"]) for cell in cells)])
    return "\n".join(table_lines(head, rows))


def detected(results: dict[str, Any], lam: float) -> str:
    """AUC of the detectors by model, and the deviation from linearity."""
    titles = _undefended(results)
    head, rows = ["", "deviation from linearity"], []
    for model, entry in results["figures"].items():
        line = entry["linearity"]
        off = dict(zip(line["lams"], line["curve"], strict=True))[lam]
        scores = {
            f"{s['score']}, {s['attack']}": f"{s['auc']:.2f} [{s['low']:.2f}, {s['high']:.2f}]"
            for s in entry["detection"]["scores"]
            if s["score"] != "entropy" and s["lam"] in (None, lam)
        }
        head[2:] = list(scores)
        distance = format_mean(mean_interval(off["mean"], off["se"], line["pairs"]))
        rows.append([titles[model], distance, *scores.values()])
    return "\n".join(table_lines(head, rows))


def field(results: dict[str, Any]) -> str:
    """A row for each defence and a column for each model: clean, oblivious, adaptive accuracy."""
    models = list(_undefended(results))
    worst = {row["title"]: row["worst"]["robust"] for row in results["adaptive"]["rows"]}
    rows: dict[str, dict[str, str]] = {}
    for row in results["rows"]:
        cells = (row["cells"]["clean"], row["cells"]["untargeted PGD-10"], worst[row["title"]])
        defense = row["title"].removeprefix(row["model"]).removeprefix(" + ") or "no defence"
        numbers = " / ".join(f"{100 * cell['accuracy']:.0f}" for cell in cells)
        rows.setdefault(defense, {})[row["model"]] = numbers
    head = ["clean / oblivious / adaptive (%)", *models]
    lines = [[defense, *(cells[model] for model in models)] for defense, cells in rows.items()]
    return "\n".join(table_lines(head, lines))


def detectors(results: dict[str, Any]) -> str:
    """Each detector under an attack that ignores it and under one that knows it."""
    head = [
        "score",
        "AUC",
        "false alarms (%)",
        "detected (%)",
        "AUC, adaptive",
        "detected, adaptive (%)",
    ]
    rows = []
    for detector in results["adaptive"]["detectors"]:
        ignores, knows = detector["attacks"]
        title = detector["title"].partition(": ")[2].removesuffix(" as a detector")
        areas = [f"{a['auc']:.2f} [{a['low']:.2f}, {a['high']:.2f}]" for a in (ignores, knows)]
        shares = [percent(a["detected"]["accuracy"]) for a in (ignores, knows)]
        false_alarms = percent(detector["false_positives"]["accuracy"])
        rows.append([title, areas[0], false_alarms, shares[0], areas[1], shares[1]])
    return "\n".join(table_lines(head, rows))


def served(results: dict[str, Any]) -> str:
    """Requests a second of each server by network and connections, and the guard's latencies."""
    head = ["network", "connections", "(a)", "(b)", "(c)", "(c) / (b)", "p50 (ms)", "p99 (ms)"]
    rows = []
    for network, found in results["networks"].items():
        for count, guard in found["servers"]["guard"].items():
            rates = [by_count[count]["rate"] for by_count in found["servers"].values()]
            times = [f"{1000 * guard[name]:.0f}" for name in ("p50", "p99")]
            ratio = f"{rates[2] / rates[1]:.1f}"
            rows.append([network, count, *map("{:.0f}".format, rates), ratio, *times])
    return "\n".join(table_lines(head, rows))


def _undefended(results: dict[str, Any]) -> dict[str, str]:
    """What the row of each model without a defence is called."""
    return {row["model"]: row["title"] for row in results["rows"] if row["defense"] == "none"}


def judged(runs: list[dict[str, Any]]) -> str:
    """A table for each place of the paper: its claims, and what the runs say of them.

    What the paper says in one place is judged by the first run on the same data that can.
    """
    judge: dict[tuple[str, str], str] = {}
    tables: dict[str, list[str]] = {}
    for results in runs:
        for c in claims(results):
            where = results["spec"]["data"]["name"], c.source
            if judge.setdefault(where, results["name"]) != results["name"]:
                continue
            cells = [c.statement, f"`{results['name']}`", f"**{c.verdict}**", c.evidence]
            tables.setdefault(c.source, []).append(f"| {' | '.join(cells)} |")
    head = ["| claim | run | verdict | measured |", "|---|---|---|---|"]
    return "\n\n".join("\n".join([f"## {w}", "", *head, *t]) for w, t in tables.items())


def pictures() -> list[Path]:
    """Draw the figures that the pages show."""
    paths = []
    for run, names in FIGURES.items():
        for chart in charts(read(run)):
            if chart.name in names:
                paths.append(PICTURES / f"{run}-{chart.name}.png")
                paths[-1].write_bytes(draw(chart).png)
    return paths


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(*PAGES, *pictures(), sep="\n")
