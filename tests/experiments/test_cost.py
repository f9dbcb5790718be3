"""The plan against what really happens, counted on the network itself."""

from __future__ import annotations

import pytest
import torch

from mixup_inference import pgd, train
from mixup_inference.datasets import Shape
from mixup_inference.experiments import Experiment, check_spec, load_spec, plan
from mixup_inference.experiments.cost import Speed, Work, defense_passes, training_passes
from mixup_inference.models.call import count_passes
from mixup_inference.training import Recipe
from specs import tiny_spec


@pytest.mark.parametrize("labels", ["true", "predicted"])
@pytest.mark.parametrize("objective", ["erm", "mixup", "at", "iat"])
@pytest.mark.parametrize("most", [None, 1])
def test_training_passes_are_those_that_training_makes(parts, objective, labels, most):
    x, y = parts["train"].images, parts["train"].labels
    recipe = Recipe(
        objective=objective, epochs=2, batch_size=16, steps=3, attack_labels=labels, max_steps=most
    )
    x, y = x[:32], y[:32]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 10))
    with count_passes(model) as passes:
        train(model, x, y, recipe)
    # One more pair of images tells training how many classes there are.
    assert training_passes(recipe, 32)[0] == passes.forward - 2


@pytest.mark.parametrize("labels", ["true", "predicted"])
def test_attack_passes_are_those_that_pgd_makes(trained, parts, labels):
    test = parts["test"].take(torch.arange(20))
    with count_passes(trained) as passes:
        pgd(trained, test.images, test.labels, eps=0.1, step=0.05, steps=4, labels=labels)
    spec = spec_of(labels)
    work = next(w for w in plan(spec, Shape(1797, 0, 1, (8, 8), 10)) if w.stage == "attack")
    assert (work.forward, work.backward) == (passes.forward, 20 * 4)


def spec_of(labels="true", **changes):
    defended = {
        "mi-ol": {},
        "mi-combined": {"threshold": -1.0},
        "rotation": {},
    }
    rows = [{"title": kind, "model": "mixup", "defense": kind} | s for kind, s in defended.items()]
    return check_spec(
        tiny_spec(
            draws=5,
            attack={"steps": [2, 4], "labels": labels},
            rows=[{"title": "none", "model": "mixup"}, *rows],
            **changes,
        )
    )


def test_measuring_passes_are_those_of_the_table(tmp_path):
    spec = spec_of()
    experiment = Experiment(spec, tmp_path)
    work = [w for w in plan(spec, Shape(1797, 0, 1, (8, 8), 10)) if w.stage == "measure"]
    for row, part in zip(spec.rows, work, strict=True):
        cells = [experiment.cell(row, column) for column in experiment.spec.columns]
        assert sum(cell.accuracy.passes * cell.accuracy.total for cell in cells) == pytest.approx(
            part.forward
        )


def test_the_paper_needs_31_passes_an_image():
    spec = load_spec("paper-cifar10")
    shape = Shape(50_000, 10_000, 3, (32, 32), 10)
    passes = {row.title: defense_passes(row, spec.draws, shape) for row in spec.rows}
    assert passes["Mixup"] == 1
    assert passes["Mixup + MI-OL"] == 31
    assert passes["Mixup + MI-Combined"] == 61
    assert passes["Mixup + Guo et al."] == 30
    training = {w.model: w for w in plan(spec, shape) if w.stage == "train"}
    assert training["mixup"].forward == 200 * 50_000
    assert training["iat"].backward == 200 * 50_000 * 12


def test_time_follows_from_the_speeds():
    speed = Speed(forward=100.0, attack=20.0, training=5.0)
    assert speed.seconds(Work("measure", "", "m", 500)) == 5
    assert speed.seconds(Work("attack", "", "m", 300, 200)) == 1 + 10
    assert speed.seconds(Work("train", "", "m", 200, 200)) == 40


def test_without_settings_to_trade_off_nothing_is_attacked_for_them():
    shape = Shape(1797, 0, 1, (8, 8), 10)
    some, none = (
        {w.title for w in plan(spec_of(data={"tuning": 20}, figures={"defenses": kinds}), shape)}
        for kinds in (["mi-ol"], [])
    )
    assert {title.partition(": ")[2] for title in some - none} == {
        "attacks to tune on",
        "trade-off",
    }
