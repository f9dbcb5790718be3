from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from mixup_inference.reporting.figures import charts, draw, write_chart
from mixup_inference.reporting.figures.chart import inline

NAMES = {
    "overview", "linearity",
    *(f"{figure}-{model}" for model in ("mixup", "erm") for figure in (
        "predictions", "mechanisms-untargeted", "mechanisms-targeted", "detection-gap", "auc",
        "roc", "combined", "tradeoff", "gallery")),
}  # fmt: skip


def named(results):
    return {chart.name: chart for chart in charts(results)}


def texts(svg):
    """All the text of an SVG, with what is between the parts of a formula taken out."""
    root = ET.fromstring(svg)  # noqa: S314 (our own)
    return [
        "".join("".join(node.itertext()).split())
        for node in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_there_is_a_figure_for_everything(full):
    assert {re.sub(r"(mechanisms)-(\w+)-(\w+)", r"\1-\3-\2", name) for name in named(full)} == NAMES


def test_without_figures_there_is_the_overview(results):
    assert set(named(results)) == {"overview"}
    assert set(named(results | {"figures": {}})) == {"overview"}


def test_parts_that_were_not_measured_have_no_figure(full):
    entry = full["figures"]["mixup"]
    entry["theory"] = []  # the attack fooled nobody
    entry["gallery"] = []
    del entry["tradeoff"]
    assert set(named(full | {"figures": {"mixup": entry}})) == {
        "overview", "linearity", "auc-mixup", "roc-mixup", "combined-mixup",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["overview", "linearity", "predictions-mixup", "gallery-mixup"])
def test_drawing_twice_gives_the_same_bytes(full, name):
    chart = named(full)[name]
    first, second = draw(chart), draw(chart)
    assert first == second
    assert Image.open(io.BytesIO(first.png)).size == tuple(round(200 * s) for s in chart.size)


def test_every_figure_says_what_it_is_about_in_text(drawings):
    for chart, drawing in drawings.values():
        svg = drawing.svg
        found = "".join(texts(svg))
        assert "".join(chart.title.split()) in found
        if chart.name.endswith(("-mixup", "-erm")):
            assert chart.name.rpartition("-")[2] in chart.title
            assert "PGD-10" in chart.title
        assert not re.search(r"<dc:date>|<metadata", svg.replace("<metadata/>", ""))


def test_files_hold_the_rows_that_were_drawn(drawings, tmp_path):
    for chart, drawing in drawings.values():
        svg, png, data, table = write_chart(chart, drawing, tmp_path)
        assert (svg.name, png.name) == (f"{chart.name}.svg", f"{chart.name}.png")
        assert json.loads(data.read_text())["rows"] == chart.rows
        with table.open(newline="") as file:
            read = list(csv.DictReader(file))
        written = [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in chart.rows
        ]
        assert read == written


def test_overview_is_the_hardest_attacks_of_the_table(results):
    rows = named(results)["overview"].rows
    assert len(rows) == len(results["rows"]) * 3
    for row in rows:
        (of,) = [r for r in results["rows"] if r["title"] == row["method"]]
        assert row["value"] == of["cells"][row["column"]]["accuracy"]


def test_predictions_are_the_analysis_with_students_t_intervals(full):
    entries = full["figures"]["mixup"]["theory"]
    rows = named(full)["predictions-mixup"].rows
    for row in rows:
        if row["source"] == "without MI":
            continue
        (found,) = [
            e for e in entries
            if (e["attack"], e["kind"].upper(), e["lam"]) == (
                row["attack"], row["kind"], row["lam"])
        ]  # fmt: skip
        part, key = found[row["input"]], f"{row['component']}_mi"
        if row["source"] == "theory":
            assert row["value"] == part["theory"][key]
            assert row["low"] is None
        else:
            assert row["value"] == part[key]["mean"]
            arm = stats.t.ppf(0.975, found["counts"]["used"] - 1) * part[key]["se"]
            assert row["high"] - row["low"] == pytest.approx(2 * arm)
    # Three series, each once without MI for both kinds and attacks; measured and theory per lam.
    assert len(rows) == 3 * (2 * 2 + 2 * len(entries))


@pytest.mark.parametrize("lams", [1, 2])
def test_theory_at_a_single_lambda_is_seen(full, lams):
    """A line through one value would be invisible."""
    entry = full["figures"]["mixup"]
    some = sorted({found["lam"] for found in entry["theory"]})[:lams]
    entry["theory"] = [found for found in entry["theory"] if found["lam"] in some]
    chart, figure = named(full)["predictions-mixup"], Figure()
    chart.paint(figure, chart.rows)
    theory = [row["value"] for row in chart.rows if row["source"] == "theory"]
    lines = [line for axes in figure.axes for line in axes.lines if line.get_ydata()[0] in theory]
    assert len(lines) == len(theory) / lams > 0
    assert {line.get_marker() for line in lines} == {"_" if lams == 1 else "None"}


def test_mechanisms_add_up(full):
    chart = named(full)["mechanisms-mixup-targeted"]
    assert {row["attack"] for row in chart.rows} == {"targeted"}
    whole = {}
    for row in chart.rows:
        place = (row["kind"], row["component"], row["lam"])
        whole.setdefault(place, {})[row["quantity"]] = row["value"]
    for parts in whole.values():
        assert parts["sum"] == pytest.approx(
            parts["input transfer"] + parts["perturbation shrinkage"], abs=1e-6
        )
    pl = whole["MI-PL", "y_hat", 0.3]
    assert pl["bound"] == pytest.approx(0.7)  # Eq. 12


def test_roc_is_at_the_ratio_nearest_to_a_half(full):
    chart = named(full)["roc-mixup"]
    assert {row["lam"] for row in chart.rows} == {0.5, None}
    assert "λ = 0.5" in chart.title
    assert {row["score"] for row in chart.rows} == {"MI-PL", "MI-OL", "low confidence", "entropy"}


def test_robust_interval_is_around_the_robust_accuracy(full):
    for row in named(full)["tradeoff-erm"].rows:
        assert row["robust_low"] < row["robust"] < row["robust_high"]
        assert row["settings"] in ("lam 0.5", "lam 0.4", "size 0.75 to 1")


def test_dollars_and_tags_in_titles_stay_text(whole, drawings):
    overview, gallery = (drawings[name][1].svg for name in ("overview", "gallery-mixup"))
    assert "<script" not in overview
    assert "".join(whole["title"].split()) in texts(overview)
    assert any("$1" in text for text in texts(gallery))


def test_inlined_figures_share_no_identifiers(drawings):
    seen = set()
    for chart, drawing in drawings.values():
        text = inline(chart, drawing)
        root = ET.fromstring(text)  # noqa: S314 (our own)
        own = [node.get("id") for node in root.iter() if node.get("id")]
        assert len(set(own)) == len(own)
        assert not seen & set(own)
        seen |= set(own)
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert used <= set(own)
        assert root.get("aria-label") == chart.title


def of_lengths(results, **epochs):
    """The same results with a model a length of training, each bare and defended."""
    rows = [
        row | {"model": model, "defense": defense, "settings": settings}
        for model in epochs
        for row, defense, settings in zip(
            results["rows"], ("none", "mi-ol"), ({}, {"lam": 0.5}), strict=True
        )
    ]
    trainings = {m: {"objective": "mixup", "lr": 0.1, "epochs": n} for m, n in epochs.items()}
    return results | {"rows": rows, "trainings": trainings}


def test_trainings_of_several_lengths_are_drawn_against_their_epochs(results):
    found = of_lengths(results, long=40, short=5)
    chart = named(found)["training-length"]
    assert len(chart.rows) == 2 * 2 * 3  # lengths, defences, columns
    assert {(row["model"], row["epochs"]) for row in chart.rows} == {("short", 5), ("long", 40)}
    assert {row["defense"] for row in chart.rows} == {"no defence", "MI-OL lam 0.5"}
    assert [row["epochs"] for row in chart.rows[:4]] == [5, 5, 40, 40]
    assert chart.rows[1]["value"] == found["rows"][1]["cells"]["clean"]["accuracy"]
    shown = texts(draw(chart, png=False).svg)
    assert {"5", "40", "epochs", "MI-OLlam0.5"} <= set(shown)


def test_trainings_that_differ_in_more_than_their_length_are_not(results):
    found = of_lengths(results, long=40, short=5)
    found["trainings"]["long"]["lr"] = 0.2
    assert "training-length" not in named(found)
    found["trainings"]["long"] = None  # a stranger's weights
    assert "training-length" not in named(found)
    assert "training-length" not in named(of_lengths(results, one=5, two=5))


def test_things_that_no_registry_knows_are_drawn_under_their_own_names(full):
    """Results of a user's plug-ins, read where these are not installed."""
    entry = full["figures"]["mixup"]
    scores = entry["detection"]["scores"]
    scores += [score | {"score": "mine:score"} for score in scores if score["score"] == "entropy"]
    entry["tradeoff"]["mine:Defense"] = entry["tradeoff"]["resize-pad"]
    for name, words in (("auc", "mine:score"), ("roc", "mine:score"), ("tradeoff", "mine:Defense")):
        svg = draw(named(full)[f"{name}-mixup"], png=False).svg
        assert any(words in text for text in texts(svg))
