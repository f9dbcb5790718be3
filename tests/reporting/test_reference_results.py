"""The reference results of the repository: the pages show their numbers, and none of the data."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = sorted(ROOT.glob("results/*/results.json"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    return script("page").PAGES


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_the_tables_of_the_pages_are_those_of_the_results(path):
    page = script("page")
    text = path.read_text(encoding="utf-8")
    assert len(page.TABLE.findall(text)) == text.count("<!-- table:")
    assert page.filled(text) == text
    wrong = re.sub(r"\| (Mixup|.*: Mixup) \| \d", r"| \1 | 9", text)
    assert page.filled(wrong) == text


def test_every_run_has_a_page():
    texts = [path.read_text(encoding="utf-8") for path in pages()]
    shown = {
        word for text in texts for t in script("page").TABLE.findall(text) for word in t[1].split()
    }
    assert {path.parent.name for path in KEPT} <= shown


def test_the_figures_of_the_pages_are_drawn_from_the_results():
    page = script("page")
    drawn = {f"{run}-{name}.png" for run, names in page.FIGURES.items() for name in names}
    for run, names in page.FIGURES.items():
        assert set(names) <= {chart.name for chart in page.charts(page.read(run))}
    shown = {
        name
        for path in page.PAGES
        for name in re.findall(r"pictures/(cifar[\w-]+\.png)", path.read_text(encoding="utf-8"))
    }
    assert shown == drawn == {path.name for path in page.PICTURES.glob("cifar*")}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_no_picture_of_the_data_is_kept(path):
    assert "gallery" not in {
        key for entry in (json.loads(path.read_text())["figures"] or {}).values() for key in entry
    }
    assert not re.search(r"data:image|\"image\"", path.read_text())


def test_keeping_a_run_takes_the_pictures_out(full, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps(full))
    assert '"image"' in json.dumps(full)
    kept = tmp_path / "kept" / full["name"]
    kept.mkdir(parents=True)
    (kept / "shrinkage.json").touch()
    assert script("keep").keep(tmp_path / "run", tmp_path / "kept") == kept
    names = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    # Another tool measures shrinkage.json.
    assert names == {"results.json", "table.csv", "shrinkage.json"}
    assert not re.search(r"data:image|\"image\"", (kept / "results.json").read_text())
    assert json.loads((kept / "results.json").read_text())["rows"] == full["rows"]


def test_the_rows_of_two_parts_are_joined_in_the_experiments_order():
    keep = script("keep")
    whole = json.loads((ROOT / "results" / "cifar10" / "results.json").read_text())
    whole.pop("checksum", None)

    def part(*models):
        document = json.loads(json.dumps(whole))
        for where in (document, document["spec"]):
            where["rows"] = [row for row in where["rows"] if row["model"] in models]
        for where in (document["trainings"], document["spec"]["models"]):
            for name in set(where) - set(models):
                del where[name]
        return document

    models = list(whole["trainings"])
    one, other = part(*models[1:]), part(models[0])
    assert one["rows"]
    assert other["rows"]
    joined = keep.joined(one, other)
    for key in ("rows", "trainings", "columns"):
        assert joined[key] == whole[key]
    assert joined["spec"]["rows"] == whole["spec"]["rows"]
    assert keep.joined(joined, other)["rows"] == whole["rows"]  # measured again, not twice there
    shown = {"figures": {"mixup": {"of": "mixup"}}}, {"figures": {"iat": {"of": "iat"}}}
    figures = keep.joined(one | shown[1], other | shown[0])["figures"]
    assert list(figures.items()) == [("mixup", {"of": "mixup"}), ("iat", {"of": "iat"})]
    assert keep.joined(one | shown[1], other)["figures"] == shown[1]["figures"]
    with pytest.raises(ValueError, match="adaptive attacks"):
        keep.joined(one, other | {"adaptive": {"rows": []}})
    for key, value in (("seed", 1), ("points", {}), ("columns", ["clean"])):
        with pytest.raises(ValueError, match=f"{key} differs"):
            keep.joined(one, other | {key: value})
    rounded = {"engines": dict.fromkeys(other["trainings"], "bfloat16")}
    assert keep.joined(one, other | rounded)["engines"] == {
        name: "bfloat16" if name in other["trainings"] else "eager" for name in models
    }
    keep.joined(whole, other | rounded)  # all rows of the model are new
    with pytest.raises(ValueError, match="was computed by eager, and is by bfloat16"):
        keep.joined(whole, other | rounded | {"rows": other["rows"][:1]})
    attack = other["spec"]["attack"]

    def attacked_with(said):
        return other | {"spec": other["spec"] | {"attack": said}}

    usual = attacked_with(attack | {"precision": "32-true"})  # the same, said in more words
    assert keep.joined(one, usual)["rows"] == whole["rows"]
    for said in (None, attack | {"precision": "bf16-mixed"}):
        with pytest.raises(ValueError, match=r"spec\.attack differs"):
            keep.joined(one, attacked_with(said))
