"""The tools beside the package: reference results, pages made from them, shipped models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mixup_inference import from_pretrained, load_dataset
from mixup_inference.experiments import Experiment, parse_spec
from mixup_inference.models import shipped_models

ROOT = Path(__file__).parents[1]
TOOLS = sorted(ROOT.glob("tools/*.py"))


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TINY = """
name = "tiny"
title = "Tiny"
draws = 2
[data]
name = "digits"
test = 16
[network]
name = "small_cnn"
width = 4
[training]
epochs = 1
[models.mixup]
objective = "mixup"
[attack]
modes = ["untargeted"]
steps = [10]
eps = 0.15
step = 0.03
[[rows]]
title = "Mixup"
model = "mixup"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a tiny run with one trained model."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.toml").write_text(TINY)
    command = ["run", folder / "tiny.toml", "--output", folder, "--quiet"]
    subprocess.run([sys.executable, "-m", "mixup_inference.cli", *command], check=True)
    return folder / "tiny"


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_every_tool_says_what_it_does(path):
    done = subprocess.run(
        [sys.executable, path, "--help"], capture_output=True, text=True, check=True
    )
    first = tool(path.stem).__doc__.splitlines()[0]
    assert " ".join(first.split()) in " ".join(done.stdout.split())


def test_shipping_a_run_leaves_models_that_load_with_their_accuracy(
    run, tmp_path, capsys, monkeypatch
):
    ship, digits = tool("ship"), load_dataset("digits").train
    monkeypatch.setattr(ship, "load_dataset", lambda _: SimpleNamespace(test=digits))
    ship.ship(run, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert folder.name == "digits-mixup"
    card = from_pretrained(folder).card
    assert card["clean_accuracy"]["total"] == len(digits.labels)
    assert "in 16 bits" in capsys.readouterr().out


def test_shrinkage_has_the_clean_and_the_attacked_accuracy_at_its_ends(run, tmp_path):
    path = tmp_path / "tiny" / "shrinkage.json"
    path.parent.mkdir()
    path.write_text(json.dumps([{"model": "other"}, {"model": "mixup", "of": "another time"}]))
    shrink = tool("shrink")
    assert shrink.write(Experiment(parse_spec(TINY), run), tmp_path) == path
    other, *rows = json.loads(path.read_text())
    assert other == {"model": "other"}
    assert [row["part"] for row in rows] == list(shrink.PARTS)
    (row,) = json.loads((run / "results.json").read_text())["rows"]
    assert rows[0]["correct"] == row["cells"]["untargeted PGD-10"]["correct"]


@pytest.mark.parametrize("name", shipped_models())
def test_the_cards_have_the_numbers_of_the_results(name):
    cards, header = tool("cards"), from_pretrained(name).card
    written = (shipped_models()[name] / "README.md").read_text(encoding="utf-8")
    data, objective = header["data"], header["objective"]
    for lines in (cards._accuracy(header, data, objective), cards._defended(data, objective)):
        assert "\n".join(lines) in written


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', True),
        ("<script src=//cdn.example/b.js></script>", True),
        ("<style>@import url(https://fonts.example/c.css)</style>", True),
        ('<a href="https://example.org">elsewhere</a> <img src="d.png">', False),
        ('<link rel="canonical" href="https://example.org/e.html">', False),
    ],
)
def test_pages_that_load_from_elsewhere_are_found(text, loads, tmp_path):
    (tmp_path / "page.html").write_text(text)
    assert bool(tool("check_site").outside(tmp_path)) == loads


def test_the_architecture_lists_every_module_in_its_own_words():
    modules = tool("modules")
    page = modules.PAGE.read_text()
    assert modules.filled(page) == page, "run `make modules`"
    for path in modules.PACKAGE.rglob("*.py"):
        assert path.name.startswith("__") or f"`{path.name}`" in page


def test_no_folder_is_crowded():
    for folder in {path.parent for path in (ROOT / "src").rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= 20
