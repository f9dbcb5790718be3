from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from mixup_inference import InputError, create_model, evaluate, load_checkpoint, train
from mixup_inference.errors import TrainingDivergedError
from mixup_inference.training import BEST, LAST, Recipe, learning_rate
from stopping_trainings import StopAfter, StopError

FAST = Recipe(objective="erm", epochs=4, batch_size=50, lr=0.1, schedule="one-cycle", eps=0.1,
              step=0.05, steps=2)  # fmt: skip


def fresh():
    return create_model("small_cnn", 10, channels=1, width=4)


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


@pytest.mark.parametrize("objective", ["erm", "mixup", "at", "iat"])
@pytest.mark.usefixtures("same_global_state")
def test_same_seed_same_weights_and_resuming_changes_nothing(parts, tmp_path, objective):
    recipe = replace(FAST, objective=objective, crop_padding=1, flip=True)
    data = parts["train"].images[:300], parts["train"].labels[:300]
    straight, again, other, stopped = fresh(), fresh(), fresh(), fresh()
    history = train(straight, *data, recipe)
    assert [e.epoch for e in history] == [1, 2, 3, 4]
    train(again, *data, recipe)
    assert torch.equal(weights(straight), weights(again))
    train(other, *data, replace(recipe, seed=1))
    assert not torch.equal(weights(straight), weights(other))
    with pytest.raises(StopError):
        train(stopped, *data, recipe, folder=tmp_path, progress=StopAfter(epochs=2))
    resumed = fresh()
    resumed_history = train(resumed, *data, recipe, folder=tmp_path)
    assert torch.equal(weights(straight), weights(resumed))
    assert [e.loss for e in history] == [e.loss for e in resumed_history]
    loaded, header = load_checkpoint(tmp_path / LAST)
    assert torch.equal(weights(loaded), weights(straight))
    assert header["epochs_done"] == 4
    assert not loaded.training


@pytest.mark.usefixtures("same_global_state")
def test_dropout_is_seeded_and_resumes_too(parts, tmp_path):
    data = parts["train"].images[:150], parts["train"].labels[:150]

    def network():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    straight, stopped, resumed = network(), network(), network()
    train(straight, *data, FAST)
    with pytest.raises(StopError):
        train(stopped, *data, FAST, folder=tmp_path, progress=StopAfter(epochs=2))
    train(resumed, *data, FAST, folder=tmp_path)
    assert torch.equal(weights(straight), weights(resumed))


def test_double_precision_models_train(parts):
    model = fresh().double()
    train(model, parts["train"].images[:50], parts["train"].labels[:50], FAST)
    assert next(model.parameters()).dtype == torch.float64


def test_equals_a_plain_loop(parts):
    """ERM against torch's own SGD, written out."""
    x, y = parts["train"].images[:128], parts["train"].labels[:128]
    recipe = replace(FAST, batch_size=128, epochs=3, schedule="step", milestones=(0.5,), lr=0.05,
                     weight_decay=0.01)  # fmt: skip
    ours, plain = fresh(), fresh()
    train(ours, x, y, recipe)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    plain.train()
    for rate in (0.05, 0.05, 0.005):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(weights(ours), weights(plain), atol=1e-5, rtol=1e-4)


def test_learns(parts, trained):
    test = parts["test"]
    assert evaluate(trained, test.pixels, test.labels).value > 0.9


def test_uint8_images_are_scaled(parts):
    x, y = parts["train"].images[:100], parts["train"].labels[:100]
    as_bytes, as_floats = fresh(), fresh()
    bytes_ = (x * 255).round().to(torch.uint8)
    train(as_bytes, bytes_, y, FAST)
    train(as_floats, bytes_.float() / 255, y, FAST)
    assert torch.equal(weights(as_bytes), weights(as_floats))


def test_best_is_the_epoch_with_the_highest_validation_accuracy(parts, tmp_path):
    data = parts["train"].images[:300], parts["train"].labels[:300]
    validation = parts["test"].images, parts["test"].labels
    history = train(fresh(), *data, replace(FAST, epochs=6, lr=0.4), validation=validation,
                    folder=tmp_path)  # fmt: skip
    scores = [e.validation_accuracy for e in history]
    best, header = load_checkpoint(tmp_path / BEST)
    assert header["epochs_done"] == 1 + scores.index(max(scores))
    assert evaluate(best, *validation).value == pytest.approx(max(scores))


def test_stops_with_a_clear_message_when_the_loss_explodes(parts):
    with pytest.raises(TrainingDivergedError, match=r"in epoch 1 of 4.*Lower lr"):
        train(fresh(), parts["train"].images[:200], parts["train"].labels[:200],
              replace(FAST, lr=1e30))  # fmt: skip


def test_a_folder_of_another_training_is_refused(parts, tmp_path):
    data = parts["train"].images[:100], parts["train"].labels[:100]
    train(fresh(), *data, FAST, folder=tmp_path)
    with pytest.raises(InputError, match=r"lr 0\.1 instead of 0\.2"):
        train(fresh(), *data, replace(FAST, lr=0.2), folder=tmp_path)
    with pytest.raises(InputError, match="other data"):
        train(fresh(), data[0][:50], data[1][:50], FAST, folder=tmp_path)
    with pytest.raises(InputError, match="other validation data"):
        train(fresh(), *data, FAST, folder=tmp_path, validation=data)
    wider = create_model("small_cnn", 10, channels=1, width=5)
    with pytest.raises(InputError, match="other network"):
        train(wider, *data, FAST, folder=tmp_path)


def test_objective_by_name_takes_the_papers_settings():
    paper = Recipe(objective="mixup")
    assert (paper.epochs, paper.batch_size, paper.lr, paper.alpha) == (200, 64, 0.01, 1.0)
    assert (paper.eps, paper.step, paper.steps) == (8 / 255, 2 / 255, 10)
    assert Recipe.of_paper("mixup") == paper
    assert Recipe.of_paper("iat").lr == 0.1


def test_schedules():
    step = replace(FAST, schedule="step", epochs=200, lr=0.1, milestones=(0.5, 0.75))
    for epoch, rate in ((0, 0.1), (99, 0.1), (100, 0.01), (149, 0.01), (150, 0.001)):
        assert learning_rate(step, epoch * 10, 10) == pytest.approx(rate)
    cycle = replace(FAST, epochs=10, lr=0.4, warmup=0.2)
    rates = [learning_rate(cycle, s, 10) for s in range(100)]
    assert max(rates) == pytest.approx(0.4)
    assert rates.index(max(rates)) == 20
    assert rates[0] < 0.05
    assert rates[-1] < 0.001


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "mixpu"}, "did you mean 'mixup'"),
        ({"schedule": "cosine"}, "schedule must be 'step' or 'one-cycle'; saw 'cosine'"),
        ({"precision": "64"}, "precision must be '32-true'"),
        ({"epochs": 0}, "epochs must be greater than or equal to 1; saw 0"),
        ({"epochs": 2.5}, "epochs must be a valid integer"),
        ({"batch_size": 1}, "batch_size must be greater than or equal to 2"),
        ({"lr": 0.0}, r"lr must be greater than 0; saw 0\.0"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"adv_ratio": 10}, "adv_ratio must be less than or equal to 1; saw 10"),
        ({"lam": -0.1}, "lam must be greater than or equal to 0"),
        ({"alpha": -1}, "alpha must be greater than 0"),
        ({"milestones": (100, 150)}, "milestones, as fractions of the epochs, must be"),
    ],
)
def test_bad_recipes(settings, words):
    with pytest.raises(InputError, match=words):
        Recipe(**settings)


def test_bad_data(parts):
    x, y = parts["train"].images[:20], parts["train"].labels[:20]
    for args, words in (
        ((x * 255, y), "Divide by 255"),
        ((x[0].byte(), y), "4 dimensions"),
        ((x, y[:3]), "3 labels for 20 images"),
        ((x, y + 5), "number of classes"),
    ):
        with pytest.raises(InputError, match=words):
            train(copy.deepcopy(fresh()), *args, FAST)
