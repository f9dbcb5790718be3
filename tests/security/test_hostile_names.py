"""Names that mean harm stay words: on pages, in tables, in file names and on the terminal."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from contextlib import redirect_stdout
from html.parser import HTMLParser
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest
from PIL import Image
from rich.console import Console

from e2e.process import call
from mixup_inference import InputError, create_model, save_pretrained
from mixup_inference.cli import Common
from mixup_inference.cli.evaluate_options import OneModel, make_spec
from mixup_inference.cli.report import write_reports
from mixup_inference.cli.run import print_plan, work
from mixup_inference.datasets.image_folder import load_folder
from mixup_inference.experiments import check_spec, parse_spec
from mixup_inference.reporting.console import ConsoleCallback
from mixup_inference.utils.io import add_checksum
from mixup_inference.utils.progress import RichProgress
from mixup_inference.utils.text import markdown_words, plain, plain_lines, spreadsheet_cell
from specs import tiny_spec, to_toml

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "--></title></svg><script>",
    "{{ 7*7 }} {% raw %} ${7*7}",
    "a|b||c\\|d",
    "[bold]x[/bold] [/] [link=javascript:x]y",
    "[x](javascript:alert(1)) ![](x) `code` *x*",
    "=HYPERLINK(1) @SUM +1 -1",
    "$x_{$ \\frac{ %s {0} :smile:",
    "../../../outside",
    "&lt;b&gt; &#60;i&#62; &amp;",
)
CONTROL = ("\x1b[2J", "a\nb", "a\rb", "\x07", "\x9b31m", "\u202e", "\u2028", "\0", "\x7f", "\t")


def small(title="t", attack="a", rows=({"title": "r", "model": "m"},)):
    """A whole run in miniature, with these titles."""
    eot = {"attack": "eot-pgd", "title": attack, "steps": 1, "draws": 1}
    return tiny_spec(
        title=title,
        data={"test": 5},
        network={"width": 2},
        training={"max_steps": 1},
        models={"mixup": None, "m": {"objective": "mixup"}},
        attack={"step": 0.1, "steps": [1]},
        figures={"lams": [0.5], "points": 5, "pairs": 4, "gallery": 1},
        adaptive={
            "points": 3,
            "repeats": 2,
            "checks": 0,
            "samples": [1],
            "figure_points": 2,
            "figure_steps": 1,
            "attacks": [eot],
        },
        rows=[*rows],
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run in which every name that a spec can give means harm."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [{"title": title, "model": "m", "group": title} for title in HOSTILE]
    rows.append({"title": "= MI", "model": "m", "defense": "mi-ol"})
    spec = parse_spec(to_toml(small(" ".join(HOSTILE), HOSTILE[0], rows)))
    planned, done = io.StringIO(), io.StringIO()
    with patch("mixup_inference.experiments.cost.SECONDS", 0.01), redirect_stdout(planned):
        print_plan(spec, Common())
    with redirect_stdout(done):
        work("run", spec, Common(output=folder / "runs"))
    return folder / "runs" / "tiny", planned.getvalue(), done.getvalue()


class Tags(HTMLParser):
    """Every tag and attribute of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def check_page(page):
    seen = Tags(page)
    assert seen.tags.count("script") == 1  # ours
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    images = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href")]
    assert all(re.match(r"#|data:(,$|image/png;base64,)", value) for value in images)
    return seen


def test_the_page_shows_them_as_they_are(run):
    seen = check_page((run[0] / "report.html").read_text(encoding="utf-8"))
    for title in HOSTILE:
        assert title in seen.text


def test_the_figures_are_well_formed_and_where_they_belong(run):
    allowed = {"results.json", "table.md", "table.csv", "adaptive.csv", "report.html", "figures",
               "models", "attacks", "cells", "analysis", "adaptive", "SHA256SUMS",
               ".lock"}  # fmt: skip
    assert {path.name for path in run[0].iterdir()} <= allowed
    for path in (run[0] / "figures").glob("*.svg"):
        tree = ET.parse(path)  # noqa: S314 (written by the run above)
        assert not [e for e in tree.iter() if e.tag.rpartition("}")[2] in ("script", "img", "a")]


def test_the_tables(run):
    lines = (run[0] / "table.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    counts = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table]
    assert set(counts[: len(HOSTILE) + 3]) == {counts[0]}
    assert not any(re.search(r"<[a-zA-Z/!]|(?<!\\)\[[^\]]*\]\(", line) for line in lines)
    for name in ("table.csv", "adaptive.csv"):
        cells = [*csv.reader(io.StringIO((run[0] / name).read_text(encoding="utf-8")))]
        assert len({len(row) for row in cells}) == 1
        words = [cell for row in cells for cell in row if not re.fullmatch(r"-?[\d.]*", cell)]
        assert not [cell for cell in words if cell.startswith(("=", "+", "-", "@"))]
        assert "'= MI" in words


def test_the_terminal_shows_them_as_they_are(run):
    _, planned, done = run
    for title in HOSTILE:
        assert title in done
    squeezed = "".join(planned.split())
    for title in HOSTILE:
        assert title.replace(" ", "")[:8] in squeezed


def test_results_that_came_from_elsewhere(run, tmp_path):
    """The same document with names that no spec would have been allowed to have."""
    document = json.loads((run[0] / "results.json").read_text(encoding="utf-8"))
    text = json.dumps(document)
    evil = '../../../../evil\x1b[2J\n"><script>alert(1)</script>'
    inside = tmp_path / "a" / "b" / "c" / "d" / "e"
    inside.mkdir(parents=True)
    swapped = re.sub(r'"m"', json.dumps(evil).replace("\\", "\\\\"), text)
    swapped = re.sub(r'"(untargeted|targeted)"', r'"\1/../../../../x"', swapped)
    changed = json.loads(swapped)
    changed["versions"] = {evil: evil}
    changed["device"] = changed["name"] = changed["title"] = evil
    changed["timing"]["finished"] = evil
    (inside / "results.json").write_text(json.dumps(add_checksum(changed)), encoding="utf-8")
    write_reports((inside,), None)
    page = (inside / "report.html").read_text(encoding="utf-8")
    check_page(page)
    assert "\x1b" not in page
    assert [path.name for path in tmp_path.rglob("*") if path.is_dir()] == [*"abcde", "figures"]
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and inside not in p.parents]
    assert outside == []
    for path in inside.rglob("*.svg"):
        ET.parse(path)  # noqa: S314 (written by us, two lines above)
    write_reports((inside, inside), tmp_path / "both.html")
    check_page((tmp_path / "both.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", CONTROL)
def test_specs_may_not_have_control_characters_in_titles(text):
    document = check_spec(small()).model_dump(exclude_none=True)
    for place in (document, document["rows"][0], document["adaptive"]["attacks"][0]):
        before = place["title"]
        place["title"] = f"a{text}b"
        with pytest.raises(InputError, match="one line without control characters") as caught:
            check_spec(copy.deepcopy(document))
        assert text not in str(caught.value) or text == "a\nb"
        place["title"] = before


@pytest.mark.parametrize("text", [*HOSTILE, *CONTROL])
def test_words_for_the_terminal(text):
    assert plain(text) == text if text in HOSTILE else plain(text).isprintable()
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    callback = ConsoleCallback(console, ["r"], [])
    callback.say(text)
    callback.warn(text)
    callback.made(text, reused=False, seconds=1)
    out = console.file.getvalue()
    assert plain_lines(text) in out
    assert not set(out) & set("\x1b\r\x07\x9b\u202e\0\x7f")


@pytest.mark.parametrize("text", [*HOSTILE, *CONTROL])
def test_words_on_a_bar(text, monkeypatch):
    monkeypatch.setattr("mixup_inference.utils.progress.PATIENCE", -1)
    console = Console(file=io.StringIO(), width=300, force_terminal=True, color_system=None)
    bars = RichProgress(console)
    with bars.task(text, 2) as task:
        task.advance(1, text)
        bars.bars.refresh()
    assert plain(text)[:5] in console.file.getvalue()


def test_markdown_words_and_spreadsheet_cells():
    assert markdown_words("Mixup + MI-OL (lam 0.5)") == "Mixup + MI-OL (lam 0.5)"
    assert markdown_words("a\\|b") == "a\\\\\\|b"
    assert markdown_words("a\nb") == r"a\\nb"
    for cell in ("=1", "+1", "-x", "@x", "\tx", "\rx"):
        assert spreadsheet_cell(cell) == f"'{cell}"
    assert spreadsheet_cell("") == ""
    assert spreadsheet_cell(0.5) == 0.5


def test_class_names_of_a_folder(tmp_path):
    names = ["<b>a", "b\x1b[2J", "c\nd", "[bold]"]
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "x\x1b[31m.png")
        (tmp_path / name / "bad\x1b[2J.png").write_text("x")
    with pytest.warns(UserWarning, match="cannot be read"):
        data = load_folder(tmp_path)
    assert sorted(data.train.class_names) == sorted(["<b>a", "b\\x1b[2J", "c\\nd", "[bold]"])


def test_paths_in_warnings_and_errors(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "x.png")
        (tmp_path / name / "bad\x1b[2J.png").write_text("x")
    seen = call("data", "verify", f"folder:{tmp_path}")
    assert seen.returncode == 0, seen.stderr
    assert "\x1b" not in seen.stderr + seen.stdout
    assert "bad\\x1b[2J.png" in seen.stderr
    missing = call("data", "verify", f"folder:{tmp_path}/\x1b[2J")
    assert missing.returncode == 2
    assert "there is no folder" in missing.stderr
    assert "\x1b" not in missing.stderr


def test_a_title_made_of_a_path(tmp_path):
    folder = tmp_path / "evil\x1b[2J[bold]\n"
    save_pretrained(create_model("small_cnn", 10, channels=1, width=2), folder)
    spec = make_spec(OneModel(data="digits", weights=str(folder)), None)
    assert spec.rows[0].title == r"evil\x1b[2J[bold]\n"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", spec.name)
