"""The report's block about attackers who know the defence: sentences, tables, figures, escaping."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
from xml.etree import ElementTree as ET

import pytest
from PIL import Image
from rich.console import Console

from mixup_inference.evaluation import Accuracy
from mixup_inference.metrics.accuracy import cell_entry
from mixup_inference.reporting import ConsoleListener, html, write_report, write_results
from mixup_inference.reporting.adaptive import (
    attack_columns,
    headline,
    verdict_lines,
    verdicts,
)
from mixup_inference.reporting.figures import charts, draw
from mixup_inference.reporting.summary import summary
from mixup_inference.reporting.tables import adaptive_csv, markdown
from mixup_inference.utils.text import markdown_words

NASTY = "<i>M</i> | $x_{$ & co"
POINTS, REPEATS = 200, 5
#: Group, title, robust accuracy of the base, of MI-OL and of another randomised defence.
ATTACKS = (
    ("eot", "EOT-PGD-50", 0.04, 0.05, 0.26),
    ("oblivious", "oblivious PGD-50", 0.05, 0.46, 0.40),
    ("transfer", "transfer", 0.30, 0.52, 0.50),
    ("paper", "paper PGD-50", None, 0.21, None),
    ("official", "official PGD-50", None, 0.38, None),
    ("eot", "APGD-DLR", 0.035, 0.045, 0.22),
    ("black-box", "Square-1000", 0.20, 0.31, 0.41),
    ("frozen", "EOT-PGD-50, frozen", None, 0.01, 0.12),
)


def robust(accuracy, any_draw=None):
    low, high = max(0.0, accuracy - 0.03), min(1.0, accuracy + 0.035)
    worse = accuracy * 0.8 if any_draw is None else any_draw
    least = {"accuracy": worse, "low": max(0.0, worse - 0.03), "high": worse + 0.03}
    return {"accuracy": accuracy, "low": low, "high": high, "points": POINTS,
            "repeats": REPEATS, "any_draw": least}  # fmt: skip


def attack(group, title, accuracy, cost=550.0):
    return {"title": title, "attack": "pgd", "group": group, "robust": robust(accuracy),
            "settings": {"steps": 50, "step": 0.02}, "loss": 2.31, "linf": 0.15, "l2": 1.2,
            "forward": cost, "backward": cost - 50, "seconds": 12.3, "trace": [1.2, 1.5, 2.31],
            **({"surrogates": ["erm", NASTY]} if group == "transfer" else {})}  # fmt: skip


def checks(*passed):
    names = ("loss rises with steps", "more steps do not help the defender", "eps = 1 breaks all")
    return [
        {"name": name, "passed": went, "detail": f"the mean loss goes from 1.21 to {n + 3}.45."}
        for n, (name, went) in enumerate(zip(names, passed, strict=True))
    ]


def interval(difference, low, high):
    return {"difference": difference, "low": low, "high": high}


def row(title, which, base=None, versus=None, went=(True, True, True)):
    found = [attack(group, name, value[which]) for group, name, *value in ATTACKS
             if value[which] is not None]  # fmt: skip
    worst = min(a["robust"]["accuracy"] for a in found if a["group"] != "frozen")
    return {
        "title": title, "model": "mixup", "base": base, "defense": "mi-ol" if base else "none",
        "settings": {"lam": 0.55} if base else {}, "clean": robust(0.95), "attacks": found,
        "worst": {"robust": robust(worst), "choice": {"EOT-PGD-50": 120, "APGD-DLR": 80}},
        "versus_base": versus and interval(*versus),
        "checks": checks(*went),
    }  # fmt: skip


def image(shift, mode="RGB"):
    out = io.BytesIO()
    fading = Image.linear_gradient("L").resize((8, 8)).convert(mode)
    fading.point(lambda value: (value + shift) % 256).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()


def example(point):
    answers = {"clean": ("<b>cat</b>", 0.93), "adversarial": ("dog $1", 0.71)}
    shown = {key: {"image": image(40 * n + point), "predicted": word, "confidence": sure}
             for n, (key, (word, sure)) in enumerate(answers.items())}  # fmt: skip
    return {"point": point, "label": "<b>cat</b>", "perturbation": image(80), **shown}


def detector():
    def share(correct, total=POINTS):
        return cell_entry(Accuracy(correct, total))

    def found(title, wrong, detected, accuracy, auc):
        low, high = (None, None) if auc is None else (auc - 0.03, auc + 0.03)
        return {"title": title, "wrong": share(wrong), "robust": robust(accuracy), "auc": auc,
                "detected": detected and share(*detected), "low": low, "high": high}  # fmt: skip

    attacks = [found("PGD-50 (ignores the detector)", 190, (150, 190), 0.8, 0.873),
               found("detector-aware", 180, (9, 180), 0.145, 0.412),
               found("no attack", 0, None, 1.0, None)]  # fmt: skip
    return {"title": f"{NASTY}: MI-PL as a detector", "model": "mixup", "lam": 0.5, "rate": 0.05,
            "threshold": 0.31, "false_positives": share(9), "attacks": attacks}  # fmt: skip


def curve(*accuracies):
    return [{"samples": n, "robust": robust(a)}
            for n, a in zip((1, 2, 5, 10, 30), accuracies, strict=True)]  # fmt: skip


def made_up():
    """What a run with [adaptive] leaves; a noise row that gains, an MI row that does not."""
    curves = {"eot": curve(0.2, 0.12, 0.08, 0.06, 0.05), "official": curve(*5 * [0.4]),
              "paper": curve(0.35, 0.3, 0.27, 0.24, 0.22)}  # fmt: skip
    return json.loads(json.dumps({
        "points": POINTS, "repeats": REPEATS, "eps": 0.15, "norm": "linf", "draws": 30,
        "rows": [
            row("Mixup", 0),
            row("Mixup + MI-OL", 1, "Mixup", (-0.004, -0.019, 0.011)),
            row(NASTY, 2, "Mixup", (0.17, 0.121, 0.2184), went=(True, False, None)),
        ],
        "samples": [{"title": title, "steps": 10, "curves": curves,
                     "base": {"title": "Mixup", "robust": robust(0.05)}}
                    for title in ("Mixup + MI-OL", NASTY)],
        "gallery": {"title": NASTY, "attack": "EOT-PGD-50", "eps": 0.0627,
                    "entries": [example(3), example(8)]},
        "detectors": [detector()],
    }))  # fmt: skip


@pytest.fixture
def adaptive():
    return made_up()


@pytest.fixture
def known(results, adaptive):
    return results | {"adaptive": adaptive}


@pytest.fixture(scope="module")
def page(whole):
    return html({**whole, "figures": {}, "adaptive": made_up()})


def texts(page):
    """The text of a page without tags, whitespace made single."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def section(page):
    return page[page.index('<section id="adaptive">') : page.index('<section id="overview">')]


@pytest.mark.parametrize(
    ("versus", "change", "conclusion"),
    [
        ((-0.004, -0.019, 0.011), "adds -0.4 points (95%: -1.9 to +1.1) to", "within noise"),
        ((0.012, -0.003, 0.02), "adds +1.2 points (95%: -0.3 to +2.0) to", "within noise"),
        ((0.0, 0.0, 0.0), "adds 0.0 points (95%: 0.0 to 0.0) to", "within noise"),
        ((0.17, 0.121, 0.218), "adds 17.0 points (95%: 12.1 to 21.8) to", "really more"),
        ((-0.05, -0.08, -0.02), "takes 5.0 points (95%: 2.0 to 8.0) from", "really less"),
    ],
)
def test_the_verdict_reads_naturally_whatever_the_sign(adaptive, versus, change, conclusion):
    adaptive["rows"][1]["versus_base"] = interval(*versus)
    verdict = verdicts(adaptive)[0]
    assert verdict.sentence == (
        f"Against an attacker who knows the defence, Mixup + MI-OL {change} the base model."
    )
    assert verdict.conclusion == conclusion


def test_the_verdict_stands_beside_what_the_oblivious_attack_suggested(adaptive):
    beside = verdicts(adaptive)[0].beside
    assert beside == (
        "Worst case 4.5%, against 3.5% for Mixup alone; the oblivious attack suggests +41.0."
    )
    for found in adaptive["rows"]:
        found["attacks"] = [a for a in found["attacks"] if a["group"] != "oblivious"]
    assert "suggests" not in verdicts(adaptive)[0].beside


def test_lines_are_the_verdicts_and_then_every_failed_check(adaptive):
    lines = verdict_lines(adaptive)
    assert len(lines) == 3
    assert lines[0].startswith("Against an attacker who knows the defence, Mixup + MI-OL adds -0.4")
    assert "to the base model: within noise. Worst case 4.5%" in lines[0]
    assert lines[2] == (
        f"Do not trust this number: {NASTY}: more steps do not help the defender: "
        "the mean loss goes from 1.21 to 4.45."
    )
    assert verdict_lines(None) == []


def test_a_comparison_with_a_base_whose_checks_failed_is_not_to_be_trusted_either(adaptive):
    assert verdicts(adaptive)[0].broken == []
    adaptive["rows"][0]["checks"][0]["passed"] = False
    assert [v.broken[-1] for v in verdicts(adaptive)] == [
        "Mixup: loss rises with steps: the mean loss goes from 1.21 to 3.45."
    ] * 2


def test_the_summary_begins_with_the_attackers_who_know(known, results):
    told = summary(known)
    assert told[1] == headline(known["adaptive"])
    assert told[1] == (
        f"Against an attacker who knows the defence, {NASTY} (+17.0 points) really adds to the "
        "base model; Mixup + MI-OL makes no difference beyond noise. Not to be trusted, because "
        f"checks of the attacks failed: {NASTY}. The rest of this summary is about attackers who "
        "do not know it."
    )
    assert [told[0], *told[2:]] == summary(results)
    assert summary(results | {"adaptive": None}) == summary(results)


def test_the_summary_speaks_of_one_and_of_several(adaptive):
    adaptive["rows"][1]["versus_base"] = interval(-0.1, -0.2, -0.05)
    adaptive["rows"][2]["versus_base"] = interval(-0.2, -0.3, -0.1)
    adaptive["rows"][2]["checks"] = checks(True, True, True)
    assert headline(adaptive).startswith(
        f"Against an attacker who knows the defence, Mixup + MI-OL (-10.0 points), {NASTY} (-20.0 "
        "points) really take from the base model. The rest"
    )
    adaptive["rows"] = adaptive["rows"][:1]
    assert headline(adaptive) == ""


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
    told = texts(section(page))
    assert told.count("official adaptive attack are made for MI-OL and MI-PL only.") == 1
    assert "A model without draws has no seed to know." in told
    assert "Transfer needs" not in page  # every row has it


def test_headings_do_not_say_a_thing_twice(known, page):
    short = {c.title: c.short for c in attack_columns(known["adaptive"])}
    assert short["oblivious PGD-50"] == "PGD-50"
    assert short["transfer"] == "transfer"  # nothing would be left
    assert short["EOT-PGD-50, frozen"] == "EOT-PGD-50, frozen"
    assert "PGD\N{NON-BREAKING HYPHEN}50</button>" in section(page)
    assert "| Oblivious: PGD-50 |" in markdown(known)


def test_a_row_without_checks_is_not_called_green(known):
    known["adaptive"]["rows"][1]["checks"] = []
    found = section(html(known))
    assert "Mixup + MI-OL: no checks were run" in texts(found)
    assert '<li id="adaptive-checks-1" class="open">' in found


def test_a_failed_check_marks_its_row_and_is_shown_in_full(page):
    found = section(page)
    marks = re.findall(r'<a class="star" href="#(adaptive-checks-\d)"', found)
    assert marks == ["adaptive-checks-2"]
    assert f'<li id="{marks[0]}" class="not">' in found
    told = texts(found)
    assert "Mixup + MI-OL: 3 of 3 checks passed" in told
    assert "1 of 3 checks passed, 1 failed, 1 undecided" in told
    assert "Do not trust this number: more steps do not help the defender: the mean" in told
    assert "Undecided: eps = 1 breaks all" in told
    visible = re.sub(r"<details>.*?</details>", "", found, flags=re.DOTALL)
    assert "more steps do not help the defender" in visible
    assert "loss rises with steps" not in visible  # green ones are folded away


def test_detectors_show_how_often_the_attack_succeeds(page):
    told = texts(section(page))
    assert "λ 0.5, threshold 0.3100 (5.0%) detector-aware 4.5" in told
    assert "85.5 82.0&ndash;88.5" in told  # wrong and not flagged: 1 - 0.145
    assert "0.412 0.382&ndash;0.442" in told


def test_everything_from_a_spec_is_escaped(page, known):
    assert "<i>M" not in page
    assert "<b>cat" not in page
    assert page.count("<script") == 1
    for chart in charts(known):
        root = ET.fromstring(draw(chart, png=False).svg)  # noqa: S314 (our own)
        assert "".join(chart.title.split()) in "".join("".join(root.itertext()).split())
        assert re.fullmatch(r"[a-z0-9-]+", chart.name)  # a file name whatever the title is


def test_figure_4_has_the_three_curves_and_the_base(known):
    found = {chart.name: chart for chart in charts(known)}
    assert set(found) == {"overview", "samples-1", "samples-2", "adaptive-examples"}
    chart = found["samples-1"]
    assert chart.title == "Accuracy over adaptive samples: Mixup + MI-OL, PGD-10, 200 points"
    assert [r["value"] for r in chart.rows if r["attack"] == "paper"] == [
        0.35, 0.3, 0.27, 0.24, 0.22,
    ]  # fmt: skip
    (base,) = [r for r in chart.rows if r["attack"] == "base"]
    assert (base["defense"], base["samples"], base["value"]) == ("Mixup", None, 0.05)
    svg = draw(chart, png=False).svg
    for label in ("official code", "paper's formula (Eq. 24)", "EOT, through", "without defence"):
        assert label in svg
    assert draw(chart, png=False) == draw(chart, png=False)


def test_figure_5_shows_each_example_three_times(known, page):
    (chart,) = [c for c in charts(known) if c.name == "adaptive-examples"]
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
    assert "knows the defence" not in markdown(results | none)
    assert [p.name for p in write_results(results | none, tmp_path)] == [
        "results.json", "table.md", "table.csv",
    ]  # fmt: skip


def test_parts_that_were_not_measured_are_not_shown(known):
    known["adaptive"] |= {"samples": [], "gallery": None, "detectors": []}
    page = section(html(known))
    for words in ("Figure 4", "Figure 5", "Attacks on the detector"):
        assert words not in page


def test_files(known, tmp_path):
    names = {p.name for p in write_results(known, tmp_path)}
    assert names == {"results.json", "table.md", "table.csv", "adaptive.csv"}
    drawn = {p.name for p in write_report(known, tmp_path)}
    assert {"samples-1.csv", "samples-2.png", "adaptive-examples.svg"} <= drawn


def test_markdown_has_the_second_table_the_verdicts_and_the_failed_checks(known):
    text = markdown(known)
    second = text[text.index("## Attackers who know the defence") :]
    for line in verdict_lines(known["adaptive"]):
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
    listener = object.__new__(ConsoleListener)
    listener.console = Console(file=io.StringIO(), width=60)
    listener.verdicts(adaptive)
    listener.verdicts(None)
    assert listener.console.file.getvalue().splitlines() == verdict_lines(adaptive)


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
