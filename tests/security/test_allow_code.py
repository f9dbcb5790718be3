"""A spec that names Python code does not run it, unless the user says so."""

from __future__ import annotations

import json
import sys

import pytest

from e2e.process import call
from mixup_inference import InputError
from mixup_inference.cli import app
from mixup_inference.experiments import check_spec, load_spec, parse_spec
from mixup_inference.experiments.spec import smoke
from mixup_inference.models import import_model
from specs import tiny_toml

CODE = """
import pathlib
import torch
pathlib.Path("executed").touch()

def build(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
"""
SMALL = {"data": {"test": 5}, "rows": [{"title": "m", "model": "m"}], "attack": {"steps": [1]}}
SPEC = tiny_toml(
    **SMALL,
    network=None,
    training=None,
    models={"mixup": None, "m": {"network": {"name": "evil_net:build"}}},
)
COMMON = tiny_toml(
    **SMALL,
    network={"name": "evil_net:build", "width": None},
    models={"mixup": None, "m": {"objective": "erm"}},
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "evil_net.py").write_text(CODE)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "common.toml").write_text(COMMON)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("evil_net", None)


@pytest.mark.parametrize("text", [SPEC, COMMON], ids=["of a model", "of all models"])
def test_code_in_a_spec_is_refused_by_name(text):
    with pytest.raises(InputError, match=r"'evil_net:build' is Python code.*--allow-code"):
        parse_spec(text)
    spec = parse_spec(text, allow_code=True)
    with pytest.raises(InputError, match="is Python code"):
        check_spec(spec.model_dump(exclude_none=True))
    assert smoke(spec).network_of("m").name == "evil_net:build"


@pytest.mark.parametrize("name", [":", "a:", ":b", "a:b:c", " evil_net:build", "evil_net:build "])
def test_nothing_with_a_colon_is_let_through(name):
    for allow_code in (False, True):
        with pytest.raises(InputError, match="unknown network"):
            parse_spec(SPEC.replace("evil_net:build", name), allow_code=allow_code)
    with pytest.raises(InputError, match="cannot import the network"):
        import_model(name, 2)


def test_loading(here):
    with pytest.raises(InputError, match=r"spec\.toml: the network 'evil_net:build'"):
        load_spec("spec.toml")
    assert load_spec("spec.toml", allow_code=True).name == "tiny"
    assert not (here / "executed").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["run", "spec.toml"],
        ["run", "spec.toml", "--dry-run"],
        ["run", "common.toml", "--smoke"],
        ["train", "common.toml"],
        ["attack", "spec.toml"],
        ["evaluate", "spec.toml"],
        ["analyze", "spec.toml"],
        ["tune", "spec.toml"],
    ],
    ids=" ".join,
)
def test_no_command_runs_it_unasked(here, command):
    with pytest.raises(InputError, match=r"'evil_net:build' is Python code.*--allow-code"):
        app(command, exit_on_error=False)
    assert not (here / "executed").exists()
    assert not (here / "runs").exists()


def test_the_user_may_allow_it(here):
    done = call("evaluate", "spec.toml", "--allow-code", cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / "executed").exists()
    assert (here / "runs" / "tiny" / "results.json").exists()


OWN = """
import pathlib
import numpy as np
from mixup_inference.training.objectives import erm
pathlib.Path("executed").touch()

def data():
    y = np.arange(60) % 3
    x = np.full((60, 1, 8, 8), 0.3, np.float32) * y[:, None, None, None]
    return (x, y), (x[:12], y[:12])

def same(model, batch, recipe, classes):
    pathlib.Path("trained").touch()
    return erm(model, batch, recipe, classes)
"""


def test_objectives_and_data_sets_of_ones_own(here):
    spec = COMMON.replace("digits", "own:data").replace("evil_net:build", "small_cnn")
    (here / "own.py").write_text(OWN)
    (here / "own.toml").write_text(spec.replace('"erm"', '"own:same"'))
    refused = call("run", "own.toml", cwd=here)
    assert refused.returncode != 0
    assert "is Python code" in refused.stderr
    assert not (here / "executed").exists()
    done = call("run", "own.toml", "--allow-code", cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / "trained").exists()
    results = json.loads((here / "runs" / "tiny" / "results.json").read_text())
    assert results["trainings"]["m"]["objective"] == "own:same"


def test_what_is_given_by_hand_is_the_users_own_act(here):
    options = ["--attack", "none", "--defense", "none", "--points", "5"]
    done = call("evaluate", "--data", "digits", "--model", "evil_net:build", *options, cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / "executed").exists()


def test_the_working_folder_cannot_take_the_place_of_an_installed_module(here):
    """Whoever names an installed package gets that, whatever lies in the folder."""
    (here / "colorsys.py").write_text('raise SystemExit("executed")')
    sys.modules.pop("colorsys", None)
    before = sys.path.copy()
    with pytest.raises(InputError, match="has no attribute 'build'"):  # the standard library's
        import_model("colorsys:build", 2)
    assert sys.path == before


def test_the_search_path_is_as_before(here):
    before = sys.path.copy()
    import_model("evil_net:build", 3)
    with pytest.raises(InputError):
        import_model("no_such_module:build", 3)
    assert sys.path == before
