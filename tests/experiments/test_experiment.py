"""Where an experiment takes its images from."""

from __future__ import annotations

import pytest
import torch

from mixup_inference.datasets import Dataset, load_dataset
from mixup_inference.errors import InputError
from mixup_inference.experiments import Experiment, check_spec, data
from mixup_inference.experiments.spec import (
    in_precision,
    on_points,
    with_attack_precision,
    with_engine,
)
from mixup_inference.models import engines
from mixup_inference.training import make_fabric
from specs import DEFENDED, merged, tiny_spec

SPEC = tiny_spec(
    data={"pool": "train"}, network={"width": None}, training=None, attack=None, rows=[DEFENDED]
)


def spec_with(**changes):
    return check_spec(merged(SPEC, **changes))


@pytest.fixture
def with_a_test_part(monkeypatch):
    whole = load_dataset("digits").train
    parted = Dataset(whole.take(torch.arange(1000)), whole.take(torch.arange(1000, len(whole))))
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: parted)
    return parted


def test_the_pool_is_the_training_images_or_all_test_images(with_a_test_part, tmp_path):
    train, test = (
        Experiment(spec_with(data={"pool": part}), tmp_path) for part in ("train", "test")
    )
    assert torch.equal(train.data.pool.images, with_a_test_part.train.images)
    assert torch.equal(test.data.pool.images, with_a_test_part.test.images)
    assert train.models.folder_of("mixup") == test.models.folder_of(
        "mixup"
    )  # nothing is trained twice
    (row,), (column, *_) = train.spec.rows, train.spec.columns
    assert train.cache.path("cells", train.cell_identity(row, column)) != test.cache.path(
        "cells", test.cell_identity(row, column)
    )
    for part in ("test", "train"):
        assert torch.equal(train.data.points[part].images, test.data.points[part].images)


def test_without_a_test_part_there_is_no_such_pool(tmp_path):
    with pytest.raises(InputError, match="digits has no test part to take the pool from"):
        Experiment(spec_with(data={"pool": "test"}), tmp_path).check()


def test_fewer_points_are_the_first_of_the_same_experiment(tmp_path):
    whole = check_spec(SPEC)
    few = on_points(whole, 7)
    assert few.name == "tiny-7"
    all_of_it, part = (Experiment(spec, tmp_path / spec.name) for spec in (whole, few))
    assert torch.equal(part.data.points["test"].index, all_of_it.data.points["test"].index[:7])
    assert part.models.identity("mixup") == all_of_it.models.identity("mixup")
    for count, words in ((0, "at least 1"), (21, "has 20 test points, not 21")):
        with pytest.raises(InputError, match=words):
            on_points(whole, count)


def test_another_precision_is_another_model(tmp_path):
    """Whoever asks for it: the spec, or a Fabric to which the spec leaves it."""
    spec = check_spec(SPEC)
    said = spec_with(training={"precision": "bf16-mixed"})
    fabric = make_fabric(precision="bf16-mixed")
    plain, by_spec, by_fabric = (
        Experiment(one, tmp_path, fabric=fabric).models.folder_of("mixup")
        for one, fabric in ((spec, None), (said, None), (spec, fabric))
    )
    assert plain != by_spec == by_fabric
    assert in_precision(spec, "32-true") == spec
    assert in_precision(spec, "bf16-mixed").recipe("mixup").precision == "bf16-mixed"


def test_another_engine_computes_every_defence_of_an_experiment(tmp_path):
    """Cells of their own, the same models and attacks; a row may still say otherwise."""
    spec = spec_with(engine="folded")
    assert spec == with_engine(check_spec(SPEC), "folded")
    plain, folded = (Experiment(one, tmp_path) for one in (check_spec(SPEC), spec))
    (row,), (column, *_) = spec.rows, plain.spec.columns
    assert plain.cache.path("cells", plain.cell_identity(row, column)) != folded.cache.path(
        "cells", folded.cell_identity(row, column)
    )
    assert plain.models.folder_of("mixup") == folded.models.folder_of("mixup")
    for run, name in ((plain, "eager"), (folded, "folded")):
        run.models._models["mixup"] = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 10)
        )
        assert run.defense(row).engine == name
    own = spec_with(rows=[DEFENDED | {"engine": "compiled"}])
    other = Experiment(with_engine(own, "folded"), tmp_path)
    other.models._models["mixup"] = folded.models._models["mixup"]
    assert other.defense(own.rows[0]).engine == "compiled"
    with pytest.raises(InputError, match="did you mean 'folded'"):
        spec_with(engine="foldet")
    with pytest.raises(InputError, match="did you mean 'folded'"):
        with_engine(spec, "foldet")


def test_an_engine_that_is_not_there_is_found_before_anything_is_trained(tmp_path, monkeypatch):
    def missing(_, __):
        raise InputError("this engine needs openvino")

    monkeypatch.setitem(engines.ENGINES, "openvino", missing)
    for engine in ("eager", "folded"):
        Experiment(with_engine(check_spec(SPEC), engine), tmp_path).check()
    with pytest.raises(InputError, match="needs openvino"):
        Experiment(with_engine(check_spec(SPEC), "openvino"), tmp_path).check()
    assert not list(tmp_path.glob("*/*"))


def test_attacks_in_another_precision_are_others(tmp_path):
    attack = {"eps": 0.1, "step": 0.1}
    attacked = spec_with(attack=attack)
    spec = spec_with(attack=attack | {"precision": "bf16-mixed"})
    assert spec == with_attack_precision(attacked, "bf16-mixed")
    assert with_attack_precision(check_spec(SPEC), "bf16-mixed") == check_spec(SPEC)
    plain, rounded = (Experiment(one, tmp_path) for one in (attacked, spec))
    one, other = (run.examples_identity("mixup", "untargeted") for run in (plain, rounded))
    assert "precision" not in one["attack"]  # so that examples of earlier runs are found
    assert other["attack"]["precision"] == "bf16-mixed"
    assert plain.models.folder_of("mixup") == rounded.models.folder_of("mixup")


def test_margins_without_end_are_kept(tmp_path, monkeypatch):
    """Of a model that returns log(softmax), which is minus infinity where it is very sure."""
    spec = spec_with(training={"epochs": 1})
    run = Experiment(spec, tmp_path)
    (row,), (column, *_) = spec.rows, run.spec.columns

    def sure(x, **_):
        return torch.full((len(x), 10), -torch.inf).index_fill(1, torch.tensor([3]), 0.0)

    monkeypatch.setattr(run, "defense", lambda _: Logits(sure))
    total = run.cell(row, column)
    kept = run.cache.get_or_compute("cells", "", run.cell_identity(row, column), lambda: None).value
    assert kept["margins"] == 20 * [None]
    assert kept["labels"] == 20 * [3]
    assert total.accuracy.correct == int((run.data.points["test"].labels == 3).sum())


class Logits(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function
