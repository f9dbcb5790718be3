"""A training that is stopped anywhere and goes on ends as if it had not been stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from mixup_inference import InputError, create_model, train
from mixup_inference.models.folding import Folded
from mixup_inference.training import BEST, LAST, OBJECTIVES, Recipe, loop
from mixup_inference.training.speed import attack_target
from mixup_inference.utils.io import read_tensors
from stopping_trainings import StopAfter, StopError

#: Three steps an epoch, of 47, 47 and 46 images.
RECIPE = Recipe(objective="at", epochs=2, batch_size=50, lr=0.1, schedule="one-cycle", eps=0.1,
                step=0.05, steps=4, flip=True, crop_padding=1)  # fmt: skip


def network():
    """With batch norm, which has statistics, and dropout, which is random."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            create_model("small_cnn", 16, channels=1, width=4), nn.Dropout(0.3), nn.Linear(16, 10)
        )


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


def results(history):
    return [replace(e, seconds=0.0) for e in history]


@pytest.fixture(scope="module")
def data(parts):
    return parts["train"].images[:140], parts["train"].labels[:140]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.usefixtures("same_global_state")
def test_going_on_after_any_step_changes_nothing(data, tmp_path, objective):
    recipe, straight = replace(RECIPE, objective=objective), network()
    history = train(straight, *data, recipe)
    for step in range(1, 7):
        folder = tmp_path / f"{step}"
        with pytest.raises(StopError):
            train(network(), *data, recipe, folder=folder, save_every=0, progress=StopAfter(step))
        _, header = read_tensors(folder / LAST)
        assert header["epochs_done"] == (step - 1) // 3  # the plug is pulled before an epoch ends
        assert header["under_way"]["batches"] == (step - 1) % 3 + 1
        resumed = network()
        assert results(train(resumed, *data, recipe, folder=folder)) == results(history)
        assert torch.equal(weights(resumed), weights(straight))


def test_going_on_again_and_again_changes_nothing(data, tmp_path):
    straight, resumed = network(), network()
    history = train(straight, *data, RECIPE, validation=data)
    for step in range(1, 7):  # one step each time, and once more where an epoch ended
        with pytest.raises(StopError):
            train(network(), *data, RECIPE, validation=data, folder=tmp_path, save_every=0,
                  progress=StopAfter(step))  # fmt: skip
    again = train(resumed, *data, RECIPE, validation=data, folder=tmp_path)
    assert results(again) == results(history)
    assert torch.equal(weights(resumed), weights(straight))
    assert all(e.seconds > 0 for e in again)
    scores = [e.validation_accuracy for e in again]
    _, header = read_tensors(tmp_path / BEST)
    assert header["epochs_done"] == 1 + scores.index(max(scores))
    assert read_tensors(tmp_path / LAST)[1]["under_way"] is None


@pytest.mark.parametrize("folds", [True, False])
def test_the_choice_of_an_epoch_stays(data, tmp_path, monkeypatch, folds):
    """Whether the inner attack climbs a folded copy, although the weights are others by then."""
    chosen = []

    def choose(model, x, *, images, folded=None):
        images = images if folds else 0
        chosen.append(attack_target(model, x, images=images, folded=folded))
        return chosen[-1]

    monkeypatch.setattr(loop, "attack_target", choose)
    model = create_model("small_cnn", 10, channels=1, width=4)
    with pytest.raises(StopError):
        train(model, *data, RECIPE, folder=tmp_path, save_every=0, progress=StopAfter(2))
    folds = not folds
    with pytest.raises(StopError):
        train(model, *data, RECIPE, folder=tmp_path, save_every=0, progress=StopAfter(4))
    assert [isinstance(victim, Folded) for victim in chosen] == [not folds, not folds, folds]


def test_nothing_is_written_before_its_time(data, tmp_path):
    with pytest.raises(StopError):
        train(network(), *data, RECIPE, folder=tmp_path, progress=StopAfter(2))
    assert not (tmp_path / LAST).exists()
    with pytest.raises(StopError):
        train(network(), *data, RECIPE, folder=tmp_path, progress=StopAfter(5))
    assert read_tensors(tmp_path / LAST)[1]["epochs_done"] == 1
    with pytest.raises(InputError, match="save_every"):
        train(network(), *data, RECIPE, folder=tmp_path, save_every=-1)
