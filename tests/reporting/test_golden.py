"""All sentences of a report, compared as a whole with the files in golden/.

After an intended change, write them anew with

    REGENERATE_GOLDEN=1 python -m pytest tests/reporting/test_golden.py

and read the difference before committing it.
"""

from __future__ import annotations

import html
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from mixup_inference.reporting.adaptive import summarize_adaptive, verdict_lines
from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.pages import render_comparison, render_report
from mixup_inference.reporting.summary import summary
from mixup_inference.reporting.tables import markdown
from reporting.synthetic_adaptive import adaptive_results, checks, interval
from reporting.synthetic_results import BARE, HELPS, figures, results, row

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def listed(sections: dict[str, list[str]]) -> str:
    blocks = [
        f"## {title}\n\n" + "".join(f"- {s}\n" for s in some) for title, some in sections.items()
    ]
    return "\n".join(blocks)


def test_summary():
    strong = row("mixup", "none", 490, 300, 400)
    unattacked = results(BARE, HELPS, columns=["clean"])
    del unattacked["spec"]["attack"]
    found = {
        "helps": results(BARE, HELPS),
        "harms": results(strong, row("mixup", "mi-ol", 300, 5, 20)),
        "no effect": results(BARE, row("mixup", "mi-ol", 489, 8, 25)),
        "depends on the attack": results(BARE, row("mixup", "mi-ol", 489, 200, 20)),
        "without an attack": unattacked,
        **{f"linearity {value}": results(BARE, figures=figures(mixup=value))
           for value in (0.05, 0.15, 0.4)},
    }  # fmt: skip
    check("summary.md", listed({title: summary(one) for title, one in found.items()}))


def test_claims():
    lengths = {"short": {"epochs": 5}, "long": {"epochs": 40}, "matched": {"epochs": 5, "lam": 0.5}}
    base = {"objective": "mixup", "lam": None}
    trainings = {name: base | own for name, own in lengths.items()}
    trainings |= {name: {"objective": name} for name in ("mixup", "erm")}
    rows = [BARE, HELPS, row("mixup", "mi-combined", 490, 300, 400)]
    rows += [row("mixup", "gaussian", 480, 50, 60), row("mixup", "rotation", 480, 10, 10)]
    rows += [
        row("erm", "none", 490, 5, 20),
        row("erm", "mi-ol", 480, 20, 40) | {"settings": {"lam": 0.8}},
    ]
    for name, gain in zip(lengths, (100, 150, 40), strict=True):
        rows += [row(name, "none", 490, 5, 20), row(name, "mi-ol", 480, 5 + gain, 20 + gain)]
    adaptive = adaptive_results()
    adaptive["rows"][0]["title"] = adaptive["rows"][1]["base"] = adaptive["rows"][2]["base"] = (
        "mixup"
    )
    adaptive["rows"][1]["title"] = "mixup + mi-ol"
    found = results(*rows, figures=figures(), trainings=trainings, adaptive=adaptive)
    sections = defaultdict(list)
    for claim in claims(found):
        sections[claim.id].append(
            f"{claim.statement} ({claim.source}) {claim.verdict}: {claim.evidence}"
        )
    assert len(sections) == 12  # one of each kind
    check("claims.md", listed(sections))


def test_adaptive():
    worse, unchecked = adaptive_results(), adaptive_results()
    for number, change in ((1, (-0.1, -0.2, -0.05)), (2, (-0.2, -0.3, -0.1))):
        worse["rows"][number]["versus_base"] = interval(*change)
        worse["rows"][number]["checks"] = checks(True, True, True)
    unchecked["rows"] = unchecked["rows"][:2]
    unchecked["rows"][0]["worst"]["robust"]["accuracy"] = 0.0
    unchecked["rows"][0]["checks"][0]["passed"] = False
    unchecked["rows"][1]["checks"] = []
    found = {"mixed": adaptive_results(), "worse": worse, "unchecked": unchecked}
    lines = {title: [summarize_adaptive(one), *verdict_lines(one)] for title, one in found.items()}
    check("adaptive.md", listed(lines))


def test_table(results):
    results["spec"]["data"]["pool"] = "test"
    check("table.md", markdown(results | {"adaptive": adaptive_results()}))


class NoFigures(dict):
    def __missing__(self, key):
        return f"[figure {key}]"


def words_of(page: str) -> str:
    """The visible text of a page but for its tables' bodies, one line for each element."""
    body = re.sub(r"<(style|script|tbody).*?</\1>", "", page, flags=re.DOTALL)
    elements = "p|li|h\\d|tr|table|figcaption|section|ul|summary|pre"
    blocks = re.split(rf"</?(?:{elements})\b[^>]*>", body)
    lines = (" ".join(html.unescape(re.sub(r"<[^>]+>", " ", block)).split()) for block in blocks)
    return "".join(f"{line}\n" for line in lines if line)


@pytest.mark.parametrize("page", ["report", "comparison"])
def test_pages(whole, page):
    run = whole | {"adaptive": adaptive_results(), "engines": {"mixup": "eager"}}
    run |= {"trainings": {name: {"objective": name} for name in ("mixup", "erm")}}
    made = render_report(run, NoFigures()) if page == "report" else render_comparison([run, run])
    check(f"{page}.txt", words_of(made))
