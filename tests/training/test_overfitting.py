"""Catastrophic overfitting is measured, recorded and reported."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from mixup_inference import create_model, load_checkpoint, train
from mixup_inference.errors import MixupInferenceWarning
from mixup_inference.training import LAST, Epoch, Recipe, loop
from mixup_inference.training.overfitting import has_overfitted, robustness

FAST = Recipe(objective="fast-at", epochs=4, batch_size=50, lr=0.1, eps=0.1)


def history(*accuracies):
    """Epochs with these accuracies under FGSM and PGD."""
    plain = Epoch(1, 0.5, 0.9, 1.0)
    return [replace(plain, fgsm_accuracy=f, pgd_accuracy=p) for f, p in accuracies]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([], False),
        ([(0.5, 0.4)], False),
        ([(0.5, 0.4), (0.9, 0.05)], True),
        ([(0.5, 0.4), (0.9, 0.05), (0.9, 0.1)], True),  # it stays
        ([(0.5, 0.4), (0.9, 0.05), (0.6, 0.4)], False),  # it is over
        ([(0.7, 0.6), (0.3, 0.2)], False),  # a bad epoch: both fell
        ([(0.5, 0.4), (0.5, 0.25)], False),
        ([(0.1, 0.0), (0.7, 0.0)], True),  # it never was robust
        ([(0.9, 0.6)], False),
        ([(None, None), (None, None)], False),
    ],
)
def test_what_counts_as_overfitting(accuracies, expected):
    assert has_overfitted(history(*accuracies)) == expected


def test_robustness_is_that_of_a_linear_model():
    """The lead of a linear model falls by |weight| times what each pixel may move: exactly."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(100, 1, 4, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = model(x).argmax(1)
        normal = model[1].weight[1 - y] - model[1].weight[y]
        lead = (model(x)[:, 1] - model(x)[:, 0]).abs()
    room = torch.where(normal > 0, 1 - x.flatten(1), x.flatten(1))
    for eps in (0.02, 0.1):
        fall = (normal.abs() * room.clamp(max=eps)).sum(1)
        fgsm, pgd = robustness(model, x, y, replace(FAST, eps=eps))
        assert pgd == pytest.approx(float((lead > fall).double().mean()))
        assert fgsm >= pgd


def test_the_history_says_when_it_happens(parts, tmp_path, monkeypatch):
    data = parts["train"].images[:100], parts["train"].labels[:100]
    found = iter([(0.5, 0.4), (0.6, 0.5), (0.9, 0.1), (0.6, 0.5), (0.95, 0.1)])
    monkeypatch.setattr(loop, "robustness", lambda *_: next(found))
    model = create_model("small_cnn", 10, channels=1, width=4)
    with pytest.warns(MixupInferenceWarning, match="catastrophic overfitting in epoch 3") as seen:
        epochs = train(model, *data, replace(FAST, epochs=5), folder=tmp_path)
    assert len([w for w in seen if "overfitting" in str(w.message)]) == 1
    assert [(e.fgsm_accuracy, e.pgd_accuracy) for e in epochs][1:3] == [(0.6, 0.5), (0.9, 0.1)]
    _, header = load_checkpoint(tmp_path / LAST)
    assert has_overfitted([Epoch(**epoch) for epoch in header["history"]])


@pytest.mark.slow
def test_a_training_that_ends_in_it(parts):
    """So large an eps that one step teaches nothing that holds against ten."""
    data = parts["train"].images[:600], parts["train"].labels[:600]
    model = create_model("small_cnn", 10, channels=1, width=32)
    recipe = Recipe(objective="fast-at", epochs=60, batch_size=64, lr=0.3, schedule="one-cycle",
                    eps=0.45)  # fmt: skip
    with pytest.warns(MixupInferenceWarning, match="catastrophic overfitting"):
        last = train(model, *data, recipe)[-1]
    assert last.fgsm_accuracy > 0.5
    assert last.pgd_accuracy < 0.05


def test_only_those_that_may_overfit_are_measured(parts):
    data = parts["train"].images[:100], parts["train"].labels[:100]
    for objective, measured in (("fast-at", True), ("free-at", True), ("erm", False)):
        model = create_model("small_cnn", 10, channels=1, width=4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            epochs = train(model, *data, replace(FAST, objective=objective, epochs=2))
        assert all((e.pgd_accuracy is not None) == measured for e in epochs)
