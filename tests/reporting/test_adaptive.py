"""Adaptive attacks in the report: verdicts, tables, figures, escaping."""

from __future__ import annotations

import csv
import io
import re
import shutil
from html import unescape
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from mixup_inference.reporting import ConsoleCallback, html, write_report, write_results
from mixup_inference.reporting.adaptive import (
    WARNING,
    adaptive_verdicts,
    attack_columns,
    summarize_adaptive,
    verdict_lines,
)
from mixup_inference.reporting.figures import charts, draw
from mixup_inference.reporting.labels import why_missing
from mixup_inference.reporting.summary import summary
from mixup_inference.reporting.tables import adaptive_csv, markdown
from mixup_inference.utils.text import markdown_words
from reporting.synthetic_adaptive import ATTACKS, adaptive_results, attack, interval


@pytest.fixture
def adaptive():
    return adaptive_results()


@pytest.fixture
def attacked(results, adaptive):
    return results | {"adaptive": adaptive}


@pytest.fixture(scope="module")
def page(whole):
    return html({**whole, "figures": {}, "adaptive": adaptive_results()})


def texts(page):
    """The text of a page without tags, whitespace made single."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def section(page):
    return page[page.index('<section id="adaptive">') : page.index('<section id="overview">')]


@pytest.mark.parametrize(
    ("change", "conclusion"),
    [
        ((-0.004, -0.019, 0.011), "not significant"),
        ((0.012, -0.003, 0.02), "not significant"),
        ((0.0, 0.0, 0.0), "not significant"),
        ((0.17, 0.121, 0.218), "significantly higher"),
        ((-0.05, -0.08, -0.02), "significantly lower"),
    ],
)
def test_a_change_is_significant_if_its_interval_excludes_zero(adaptive, change, conclusion):
    adaptive["rows"][1]["versus_base"] = interval(*change)
    verdict = adaptive_verdicts(adaptive)[0]
    assert (verdict.title, verdict.change) == ("Mixup + MI-OL", change)
    assert (verdict.conclusion, verdict.failures) == (conclusion, [])


def test_the_context_of_a_verdict_has_the_oblivious_attack_if_there_was_one(adaptive):
    assert "suggests a change of +41.0 points" in adaptive_verdicts(adaptive)[0].context
    for found in adaptive["rows"]:
        found["attacks"] = [a for a in found["attacks"] if a["group"] != "oblivious"]
    assert "suggests" not in adaptive_verdicts(adaptive)[0].context


def test_lines_are_the_verdicts_and_then_every_failed_check(adaptive):
    lines = verdict_lines(adaptive)
    assert lines[:2] == [f"{v.sentence} {v.context}" for v in adaptive_verdicts(adaptive)]
    assert [line.startswith(WARNING) for line in lines] == [False, False, True]
    assert verdict_lines(None) == []


def test_a_comparison_with_a_base_whose_checks_failed_is_unreliable_too(adaptive):
    assert [len(v.failures) for v in adaptive_verdicts(adaptive)] == [0, 1]
    adaptive["rows"][0]["checks"][0]["passed"] = False
    assert [len(v.failures) for v in adaptive_verdicts(adaptive)] == [1, 2]


def test_the_summary_begins_with_the_adaptive_attacks(attacked, results):
    sentences = summary(attacked)
    assert sentences[1] == summarize_adaptive(attacked["adaptive"])
    assert [sentences[0], *sentences[2:]] == summary(results)
    assert summary(results | {"adaptive": None}) == summary(results)
    attacked["adaptive"]["rows"] = attacked["adaptive"]["rows"][:1]
    assert summarize_adaptive(attacked["adaptive"]) == ""


def test_columns_are_in_the_order_of_the_groups_with_the_seed_apart(adaptive):
    found = [(c.group, c.title) for c in attack_columns(adaptive)]
    assert found == [
        ("clean", "Clean"), ("oblivious", "oblivious PGD-50"), ("transfer", "transfer"),
        ("paper", "paper PGD-50"), ("official", "official PGD-50"), ("eot", "EOT-PGD-50"),
        ("eot", "APGD-DLR"), ("black-box", "Square-1000"), ("worst", "mean"),
        ("any draw", "any draw"), ("frozen", "EOT-PGD-50, frozen"),
    ]  # fmt: skip
    for column in attack_columns(adaptive):
        assert len(column.cells) == 3
    adaptive["rows"][2]["attacks"].append(attack("brand-new", "X", 0.9))
    (new,) = [c for c in attack_columns(adaptive) if c.group == "brand-new"]
    assert [cell and cell["accuracy"] for cell in new.cells] == [None, None, 0.9]
    assert new.over == "brand-new"  # a threat model that is not known here


def cells_of(page, title):
    """The cells of the first row with a title in the block's first table, as text."""
    for found in re.findall(r"<tr.*?</tr>", section(page), flags=re.DOTALL):
        cells = [texts(cell) for cell in re.findall(r"<td.*?</td>", found, flags=re.DOTALL)]
        if cells and cells[0].startswith(title):
            return cells
    raise AssertionError(title)


def test_the_table_has_every_group_side_by_side_and_says_what_a_dash_is(page):
    assert cells_of(page, "Mixup") == [
        "Mixup", "95.0 92.0&ndash;98.5", "5.0 2.0&ndash;8.5", "30.0 27.0&ndash;33.5",
        "&ndash;", "&ndash;", "4.0 1.0&ndash;7.5", "3.5 0.5&ndash;7.0", "20.0 17.0&ndash;23.5",
        "3.5 0.5&ndash;7.0", "2.8 0.0&ndash;5.8", "&ndash;", "2,750 2,500", "3 of 3",
    ]  # fmt: skip
    text = unescape(texts(section(page)))
    assert text.count(why_missing("paper")) == 1 == text.count(why_missing("frozen"))
    assert why_missing("transfer") not in text  # every row has it


def test_headings_do_not_repeat_words(attacked, page):
    short = {c.title: c.short for c in attack_columns(attacked["adaptive"])}
    assert short["oblivious PGD-50"] == "PGD-50"
    assert short["transfer"] == "transfer"  # nothing would be left
    assert short["EOT-PGD-50, frozen"] == "EOT-PGD-50, frozen"
    assert "PGD\N{NON-BREAKING HYPHEN}50</button>" in section(page)
    assert "| Oblivious: PGD-50 |" in markdown(attacked)


def test_a_row_without_checks_is_not_green(attacked):
    attacked["adaptive"]["rows"][1]["checks"] = []
    found = section(html(attacked))
    assert "Mixup + MI-OL: no checks were run" in texts(found)
    assert '<li id="adaptive-checks-1" class="open">' in found


def test_a_failed_check_marks_its_row_and_is_shown_in_full(page):
    found = section(page)
    marks = re.findall(r'<a class="star" href="#(adaptive-checks-\d)"', found)
    assert marks == ["adaptive-checks-2"]
    assert f'<li id="{marks[0]}" class="not">' in found
    text = texts(found)
    assert "Mixup + MI-OL: 3 of 3 checks passed" in text
    assert "1 of 3 checks passed, 1 failed, 1 inconclusive" in text
    assert f"{WARNING}: more steps do not help the defender: the mean" in text
    assert "Inconclusive: eps = 1 breaks all" in text
    visible = re.sub(r"<details>.*?</details>", "", found, flags=re.DOTALL)
    assert "more steps do not help the defender" in visible
    assert "loss rises with steps" not in visible  # green ones are folded away


def test_detectors_show_how_often_the_attack_succeeds(page):
    text = texts(section(page))
    assert "λ 0.5, threshold 0.3100 (5.0%) detector-aware 4.5" in text
    assert "85.5 82.0&ndash;88.5" in text  # wrong and not flagged: 1 - 0.145
    assert "0.412 0.382&ndash;0.442" in text


def test_everything_from_a_spec_is_escaped(page, attacked):
    assert "<i>M" not in page
    assert "<b>cat" not in page
    assert page.count("<script") == 1
    for chart in charts(attacked):
        root = ET.fromstring(draw(chart, png=False).svg)  # noqa: S314 (our own)
        assert "".join(chart.title.split()) in "".join("".join(root.itertext()).split())
        assert re.fullmatch(r"[a-z0-9-]+", chart.name)  # a file name whatever the title is


def test_figure_4_has_the_three_curves_and_the_base(attacked):
    found = {chart.name: chart for chart in charts(attacked)}
    assert set(found) == {"overview", "samples-1", "samples-2", "adaptive-examples"}
    chart = found["samples-1"]
    assert chart.title == "Accuracy over adaptive samples: Mixup + MI-OL, PGD-10, 200 points"
    assert [r["value"] for r in chart.rows if r["attack"] == "paper"] == [
        0.35, 0.3, 0.27, 0.24, 0.22,
    ]  # fmt: skip
    (base,) = [r for r in chart.rows if r["attack"] == "base"]
    assert (base["defense"], base["samples"], base["value"]) == ("Mixup", None, 0.05)
    svg = draw(chart, png=False).svg
    for label in ("published code", "paper's formula (Eq. 24)", "EOT, through", "no defence"):
        assert label in svg
    assert draw(chart, png=False) == draw(chart, png=False)


def test_figure_5_shows_each_example_three_times(attacked, page):
    (chart,) = [c for c in charts(attacked) if c.name == "adaptive-examples"]
    assert [(r["point"], r["shown"]) for r in chart.rows] == [
        (point, shown) for point in (3, 8) for shown in ("clean", "perturbation", "adversarial")
    ]
    assert section(page).count("data:image/png;base64,") == 6
    assert "eps 0.0627" in section(page)


@pytest.mark.parametrize("none", [{}, {"adaptive": None}])
def test_without_the_section_nothing_changes(results, none, tmp_path):
    page = html(results | none)
    assert 'id="adaptive"' not in page
    assert 'href="#adaptive"' not in page
    assert "Adaptive" not in markdown(results | none)
    assert [p.name for p in write_results(results | none, tmp_path)] == [
        "results.json", "table.md", "table.csv",
    ]  # fmt: skip


def test_parts_that_were_not_measured_are_not_shown(attacked):
    attacked["adaptive"] |= {"samples": [], "gallery": None, "detectors": []}
    page = section(html(attacked))
    for words in ("Figure 4", "Figure 5", "Attacks on the detector"):
        assert words not in page


def test_files(attacked, tmp_path):
    names = {p.name for p in write_results(attacked, tmp_path)}
    assert names == {"results.json", "table.md", "table.csv", "adaptive.csv"}
    drawn = {p.name for p in write_report(attacked, tmp_path)}
    assert {"samples-1.csv", "samples-2.png", "adaptive-examples.svg"} <= drawn


def test_markdown_has_the_second_table_the_verdicts_and_the_failed_checks(attacked):
    text = markdown(attacked)
    second = text[text.index("## Adaptive attacks") :]
    for line in verdict_lines(attacked["adaptive"]):
        assert f"- {markdown_words(line)}" in second
    table = [line for line in second.splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "| 4.5 [1.5, 8.0] |" in table[3]
    assert table[3].endswith("| 4,400 / 4,000 | 3 of 3 checks passed |")
    assert table[2].count("| \N{EN DASH} |") == 2  # one of two neighbours, and the seed


def test_csv_is_tidy(adaptive):
    rows = list(csv.DictReader(io.StringIO(adaptive_csv(adaptive))))
    assert list(rows[0]) == ["row", "attack", "group", "accuracy", "low", "high", "any_draw",
                             "forward", "backward", "seconds"]  # fmt: skip
    mine = [r for r in rows if r["row"] == "Mixup + MI-OL"]
    assert len(mine) == len(ATTACKS) + 2  # clean and worst case
    (eot,) = [r for r in mine if r["attack"] == "EOT-PGD-50"]
    assert (eot["group"], eot["accuracy"], eot["any_draw"]) == ("eot", "0.0500", "0.0400")
    assert (float(eot["forward"]), float(eot["backward"])) == (550, 500)
    assert mine[0] == mine[0] | {"attack": "clean", "forward": "", "seconds": ""}
    assert (mine[-1]["attack"], mine[-1]["accuracy"]) == ("worst case", "0.0450")


def test_the_terminal_gets_the_lines_as_they_are(adaptive):
    callback = object.__new__(ConsoleCallback)
    callback.console = Console(file=io.StringIO(), width=60)
    callback.verdicts(adaptive)
    callback.verdicts(None)
    assert callback.console.file.getvalue().splitlines() == verdict_lines(adaptive)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_block_fits_a_telephone(page, tmp_path, scheme):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        shown = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        complaints = []
        shown.on("console", lambda message: complaints.append(message.text))
        shown.goto(path.as_uri())
        for details in shown.locator("#adaptive details").all():
            details.locator("summary").click()
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        heading = shown.locator("#adaptive table").first.locator("th[data-column='9'] button")
        heading.click()  # worst case, descending
        first = shown.locator("#adaptive table").first.locator("tbody tr").first
        assert "22.0" in first.inner_text()
        assert complaints == []
        browser.close()
