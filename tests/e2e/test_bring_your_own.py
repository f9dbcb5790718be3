"""A defence, an attack, an objective, a network, a data set and a score of one's own.

Each is one new file, and one line of a spec names it. It then gets the whole treatment.
"""

from __future__ import annotations

import json
import sys

import pytest

from mixup_inference.attacks import ATTACKS
from mixup_inference.cli.catalogue import registered_names
from mixup_inference.datasets import DATASETS
from mixup_inference.defenses import DEFENSES
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError
from mixup_inference.experiments import Experiment, check_spec, tune
from mixup_inference.reporting import html, write_results
from mixup_inference.reporting.claims import claims
from mixup_inference.training import OBJECTIVES
from specs import tiny_spec

REGISTRIES = (ATTACKS, DATASETS, DEFENSES, OBJECTIVES, SCORES)

FILES = {
    "my_defence": """
import torch
from torch import nn

class Dither(nn.Module):
    title = "dithering"
    grid = ({"size": 0.05}, {"size": 0.4})

    def __init__(self, model, *, size=0.1):
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x):
        return self.model((x + self.size * (2 * torch.rand_like(x) - 1)).clamp(0, 1))
""",
    "my_attack": """
import torch

def grey(defense, x, y, *, eps, strength: float = 1.0):
    return x + eps * strength * (0.5 - x).sign()
""",
    "my_objective": """
from mixup_inference.training.objectives import erm

def plain(model, batch, recipe, classes):
    return erm(model, batch, recipe, classes)
""",
    "my_network": """
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
""",
    "my_data": """
from mixup_inference.datasets import load_dataset

def digits():
    data = load_dataset("digits").train
    return data.images, data.labels
""",
    "my_score": """
def second(log_p):
    return log_p.exp().topk(2).values[:, 1]
""",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    before = {id(registry): set(registry) for registry in REGISTRIES}
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)
    for registry in REGISTRIES:
        for name in set(registry) - before[id(registry)]:
            registry.remove(name)


def document():
    spec = tiny_spec(
        data={"name": "my_data:digits", "test": 20, "tuning": 20},
        network={"name": "my_network:build", "width": None},
        training={"epochs": 1, "objective": "my_objective:plain"},
        attack={"eps": 0.1, "step": 0.1, "steps": [1], "modes": ["untargeted"]},
        figures={"lams": [0.5], "points": 10, "pairs": 4, "gallery": 0},
        adaptive={"points": 8, "repeats": 2, "checks": 4, "samples": [], "gallery": 0},
    )
    spec["models"] = {"mine": {}}
    spec["figures"] |= {"defenses": ["my_defence:Dither"], "scores": ["my_score:second"]}
    spec["adaptive"]["attacks"] = [
        {"attack": "my_attack:grey", "strength": 0.5},
        {"attack": "eot-pgd", "steps": 2, "draws": 2},
        {"attack": "frozen", "steps": 2, "draws": 2},
    ]
    spec["rows"] = [
        {"title": "bare", "model": "mine"},
        {"title": "dithered", "model": "mine", "defense": "my_defence:Dither", "size": 0.2},
    ]
    return spec


@pytest.mark.parametrize(
    "name",
    [
        "my_data:digits",
        "my_network:build",
        "my_objective:plain",
        "my_defence:Dither",
        "my_attack:grey",
        "my_score:second",
    ],
)
def test_nothing_runs_unless_it_is_allowed(files, name):
    whole = json.dumps(document())
    for other in ("my_data:digits", "my_network:build", "my_objective:plain", "my_score:second"):
        if other != name:
            ours = {"my_data:digits": "digits", "my_network:build": "small_cnn"}
            ours |= {"my_objective:plain": "erm", "my_score:second": "entropy"}
            whole = whole.replace(other, ours[other])
    if name != "my_defence:Dither":
        whole = whole.replace("my_defence:Dither", "gaussian").replace(
            '"size": 0.2', '"sigma": 0.2'
        )
    if name != "my_attack:grey":
        whole = whole.replace('"my_attack:grey", "strength": 0.5', '"square"')
    with pytest.raises(InputError, match=f"{name}.*--allow-code"):
        check_spec(json.loads(whole))


def test_things_of_ones_own_get_the_whole_treatment(files):
    spec = check_spec(document(), allow_code=True)
    experiment = Experiment(spec, files / "run")
    experiment.check()
    results = experiment.run()

    dithered = results["rows"][1]
    assert dithered["cells"]["untargeted PGD-1"]["total"] == 20
    assert results["trainings"]["mine"]["objective"] == "my_objective:plain"

    attacked = {row["title"]: row for row in results["adaptive"]["rows"]}["dithered"]
    titles = [attack["title"] for attack in attacked["attacks"]]
    assert titles == ["my_attack:grey", "EOT-PGD-2", "frozen PGD-2"]  # the seed-known one too
    assert len(attacked["checks"]) > 3
    assert attacked["versus_base"] is not None

    figures = results["figures"]["mine"]
    assert [trial["settings"] for trial in figures["tradeoff"]["my_defence:Dither"]] == [
        {"size": 0.05},
        {"size": 0.4},
    ]
    assert "my_score:second" in {score["score"] for score in figures["detection"]["scores"]}

    page = html(results)
    for name in ("dithered", "my_attack:grey", "my_score:second", "dithering"):
        assert name in page
    write_results(results, files / "run")

    tuned = tune(experiment, "mine", "my_defence:Dither", loss=1.0)
    assert tuned.settings in ({"size": 0.05}, {"size": 0.4})

    for name in ("my_defence:Dither", "my_attack:grey", "my_objective:plain", "my_score:second"):
        assert name in registered_names()


def test_a_registered_baseline_is_judged_by_the_claims(files):
    """One line registers it; the claim that MI-OL beats the baselines then looks at it too."""
    dither = DEFENSES.load("my_defence:Dither").factory
    DEFENSES.register("dither", group="baseline")(dither)
    rows = [
        {"title": "bare", "model": "mixup"},
        {"title": "mi-ol", "model": "mixup", "defense": "mi-ol"},
        {"title": "dithered", "model": "mixup", "defense": "dither"},
    ]
    results = Experiment(check_spec(tiny_spec(rows=rows)), files / "run").run()
    assert any("dithered" in claim.evidence for claim in claims(results))


def test_everything_is_the_same_the_second_time(files):
    first = Experiment(check_spec(document(), allow_code=True), files / "one").run()
    second = Experiment(check_spec(document(), allow_code=True), files / "two").run()
    assert first["rows"] == second["rows"]
    assert first["adaptive"]["rows"] == [
        row | {"attacks": one["attacks"]}
        for row, one in zip(second["adaptive"]["rows"], first["adaptive"]["rows"], strict=True)
    ]


def test_a_changed_file_is_seen(files):
    first = Experiment(check_spec(document(), allow_code=True), files / "run")
    row, column = first.spec.rows[1], first.spec.columns[0]
    before = first.cell_identity(row, column)
    path = files / "my_defence.py"
    path.write_text(path.read_text().replace("2 * torch", "3 * torch"))
    from mixup_inference.experiments import code_hash

    code_hash._hash_of.cache_clear()
    code_hash._parsed.cache_clear()
    after = first.cell_identity(row, column)
    assert before["defense code"] != after["defense code"]
    assert before["model"] == after["model"]
