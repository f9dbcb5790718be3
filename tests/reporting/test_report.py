from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from mixup_inference.evaluation import Accuracy
from mixup_inference.metrics.accuracy import cell_entry
from mixup_inference.reporting import html, write_comparison, write_report
from mixup_inference.reporting.formatting import format_margin
from mixup_inference.reporting.summary import best
from mixup_inference.reporting.tables import as_csv, markdown
from reporting import synthetic_results as synthetic

NASTY = "<script>alert(1)</script> & | co $x_{$ b"
NUMBER = re.compile(r"(?<![\w.])(?:(?<!\d)-)?\d+(?:\.\d+)?(?:e-?\d+)?")


class Cells(HTMLParser):
    """The text of all td elements by the id of their section, small print set off by a space."""

    def __init__(self):
        super().__init__()
        self.found, self.section, self.inside = {}, "", False

    def handle_starttag(self, tag, attributes):
        if tag == "section":
            self.section = dict(attributes)["id"]
        elif tag == "td":
            self.inside = True
            self.found.setdefault(self.section, []).append("")
        elif self.inside:
            self.found[self.section][-1] += " "

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.found[self.section][-1] += data.replace("\N{EN DASH}", "-")


def leaves(value):
    """Every number and text in a document."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def forms(value):
    """The ways in which the report may write a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return set()
    shares = {f"{100 * value:.{digits}f}" for digits in (1, 2)}
    return shares | {f"{value:.{digits}f}" for digits in range(5)} | {str(value)}


def test_markdown_has_every_number(results):
    lines = markdown(results).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert "95.0 [91.0, 97.3]" in table[2]
    assert "0.0 [0.0, 1.9]" in table[2]
    assert "100.0 [98.1, 100.0]" in table[3]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1  # the pipe is escaped


def test_csv_can_be_read_back(results):
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [row["method"] for row in rows] == ["Plain", NASTY]
    assert float(rows[1]["untargeted PGD-10"]) == 0.45
    assert float(rows[1]["clean low"]) < 0.9 < float(rows[1]["clean high"])


def test_margin_is_never_shorter_than_the_longer_arm():
    cell = cell_entry(Accuracy(0, 500))
    assert format_margin(cell) == "0.0 ±0.8"


def test_page_is_self_contained_and_escapes_what_it_is_given(page):
    assert page.count("<script") == 1  # ours
    assert "alert(1)</script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>one</b>" not in page
    assert not re.search(r'(src|href|action)="(?!#|data:)', page)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", page))
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_number_in_a_table_is_in_the_results(whole, page):
    parser = Cells()
    parser.feed(page)
    known = {form for leaf in leaves(whole) for form in forms(leaf)}
    assert set(parser.found) == {"table", "linearity", "theory", "detection", "settings"}
    for section in ("table", "linearity", "theory", "detection"):
        for text in parser.found[section]:
            if text == NASTY:
                continue
            assert set(NUMBER.findall(text)) <= known, text


def test_the_table_shows_the_cells_of_its_row(results):
    parser = Cells()
    parser.feed(html(results))
    first = [" ".join(text.split()) for text in parser.found["table"][:5]]
    assert first[0] == "Plain"
    assert first[1].removeprefix("★").strip() == "95.0 91.0-97.3"
    assert first[2:] == ["0.0 0.0-1.9", "3.5 1.7-7.0", "31.0"]


def test_sections_come_in_order_and_only_with_their_data(full, page):
    sections = re.findall(r'<section id="(\w+)"', page)
    whole = ["table", "overview", "linearity", "theory", "detection", "tradeoff", "gallery",
             "claims", "settings"]  # fmt: skip
    assert [s for s in sections if s != "claims"] == [s for s in whole if s != "claims"]
    assert all(whole.index(a) < whole.index(b) for a, b in pairwise(sections))
    for entry in full["figures"].values():
        entry["theory"] = []
        del entry["tradeoff"], entry["gallery"]
    fewer = re.findall(r'<section id="(\w+)"', html(full))
    assert set(fewer) - {"claims"} == {"table", "overview", "linearity", "detection", "settings"}


@pytest.mark.parametrize("figures", [{}, None])
def test_a_run_without_attack_models_or_figures_has_a_report(results, figures):
    del results["spec"]["attack"]
    results["columns"] = ["clean"]
    results["models"] = {}
    for row in results["rows"]:
        row["cells"] = {"clean": row["cells"]["clean"]}
    page = html(results if figures is None else results | {"figures": figures})
    assert "without an attack" in page
    assert "oblivious" not in page
    assert 'id="theory"' not in page


def test_detection_without_calibration_points_has_no_thresholds(full):
    for entry in full["figures"].values():
        for score in entry["detection"]["scores"]:
            del score["calibrated"]
    page = html(full)
    assert 'id="detection"' in page
    assert "Threshold</button>" not in page


def test_report_says_what_computed_each_model(results):
    words = "Engines of the models inside defences"
    assert words not in html(results)  # of a version that did not write them
    page = html(results | {"engines": {"one": "folded", "two": "bfloat16"}})
    assert f"{words}: one: folded, two: bfloat16." in page


def test_report_says_which_sign_the_detection_gap_has(page):
    assert "Eq. 11 as printed has the opposite sign" in page


def test_report_writes_the_page_and_each_figure_four_times(results, tmp_path):
    paths = write_report(results, tmp_path)
    assert paths[0] == tmp_path / "report.html"
    assert {p.relative_to(tmp_path).as_posix() for p in paths[1:]} == {
        f"figures/overview.{kind}" for kind in ("svg", "png", "json", "csv")
    }
    assert all(path.stat().st_size > 100 for path in paths)


def test_comparison_has_all_rows_and_dashes_for_what_a_run_does_not_have(full, results, tmp_path):
    other = results | {"name": "o<i>", "columns": ["clean", "untargeted PGD-50"]}
    other["rows"] = [
        {**row, "cells": {"clean": row["cells"]["clean"], "untargeted PGD-50": cell}}
        for row in results["rows"]
        for cell in [row["cells"]["targeted PGD-10"]]
    ]
    path = write_comparison([full, other, full], tmp_path / "comparison.html")
    page = path.read_text(encoding="utf-8")
    parser = Cells()
    parser.feed(page)
    rows = [
        [" ".join(text.split()) for text in parser.found["table"][i : i + 6]]
        for i in range(0, len(parser.found["table"]), 6)
    ]
    assert [row[0] for row in rows] == [
        f"{run}: {title}" for run in ("t", "o<i>", "t (2)") for title in ("Plain", NASTY)
    ]
    assert rows[0] == ["t: Plain", "95.0 91.0-97.3", "0.0 0.0-1.9", "-", "3.5 1.7-7.0", "31.0"]
    assert rows[2] == ["o<i>: Plain", "95.0 91.0-97.3", "-", "3.5 1.7-7.0", "-", "31.0"]
    assert page.count('aria-label="Distance from linearity') == 2  # the other has no figures
    assert page.count("<script") == 1


def test_only_rows_that_are_significantly_best_are_marked():
    noise = synthetic.row("mixup", "gaussian", 480, 190, 20)
    rows = [synthetic.BARE, synthetic.HELPS, noise, synthetic.row("erm", "none", 499, 1, 1)]
    marked = best(synthetic.results(*rows))
    assert marked == {"clean": set(), "untargeted PGD-10": set(), "targeted PGD-10": {1}}
