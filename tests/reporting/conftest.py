"""Synthetic results of a run, made by the functions that make real ones."""

from __future__ import annotations

import base64
import copy
import io
import json
from dataclasses import asdict

import pytest
import torch
from PIL import Image

from mixup_inference.evaluation import Accuracy
from mixup_inference.evaluation.detection import Answers, measure_combined, measure_detection
from mixup_inference.metrics.accuracy import cell_entry
from mixup_inference.reporting.figures import charts, draw
from mixup_inference.reporting.figures.chart import inline
from mixup_inference.reporting.pages import render_report
from mixup_inference.theory import Counts, Linearity
from mixup_inference.theory.quantities import Passes, estimate, summarize

NASTY = "<script>alert(1)</script> & | co $x_{$ b"
COLUMNS = ["clean", "untargeted PGD-10", "targeted PGD-10"]
LAMS = (0.3, 0.5, 0.8)
MODES = ("untargeted", "targeted")
POINTS, CLASSES = 60, 4


def cell(correct: int, total: int = 200) -> dict[str, float]:
    return cell_entry(Accuracy(correct, total))


@pytest.fixture
def results():
    """A run without [figures]."""
    return _results()


@pytest.fixture(scope="session")
def whole():
    """A run with everything that [figures] can ask for, after a round trip through JSON."""
    figures = {name: _of_model(seed) for seed, name in enumerate(("mixup", "erm"))}
    return json.loads(json.dumps(_results() | {"figures": figures}))


@pytest.fixture
def full(whole):
    """A copy of it that a test may change."""
    return copy.deepcopy(whole)


@pytest.fixture(scope="session")
def drawings(whole):
    """All its charts, drawn."""
    return {chart.name: (chart, draw(chart, png=False)) for chart in charts(whole)}


@pytest.fixture(scope="session")
def page(whole, drawings):
    """Its report."""
    return render_report(whole, {name: inline(*pair) for name, pair in drawings.items()})


def _results():
    def row(title, group, *correct):
        cells = {
            c: cell_entry(Accuracy(n, 200, 31.0)) for c, n in zip(COLUMNS, correct, strict=True)
        }
        return {
            "title": title, "group": group, "model": "mixup", "defense": "mi-ol",
            "settings": {"lam": 0.5}, "passes_per_image": 31.0, "cells": cells,
        }  # fmt: skip

    return {
        "schema": 1, "name": "t", "title": NASTY, "columns": COLUMNS, "seed": 0, "device": "cpu",
        "rows": [row("Plain", "a", 190, 0, 7), row(NASTY, "b", 180, 90, 200)],
        "models": {"mixup": {"epochs": 2, "final_loss": 1.0, "final_training_accuracy": 0.5}},
        "points": {"test": 200, "train": 10},
        "spec": {"draws": 30, "data": {"name": "digits"},
                 "attack": {"norm": "linf", "eps": 0.1, "step": 0.02, "labels": "true",
                            "modes": ["untargeted", "targeted"], "steps": [10]}},
        "versions": {"mixup-inference": "0"},
        "timing": {"finished": "now", "seconds": 1.0, "training_seconds": {"mixup": 3.0}},
    }  # fmt: skip


def _of_model(seed):
    noise = torch.Generator().manual_seed(seed)

    def answers(sharpness):
        return (sharpness * torch.randn(POINTS, CLASSES, generator=noise)).log_softmax(1)

    def passes():
        return Passes(*(answers(3.0).exp() for _ in range(6)))

    labels = torch.arange(POINTS) % CLASSES
    theory = [
        {"attack": mode, **asdict(summarize(
            passes(), labels, kind=kind, lam=lam, draws=5, counts=Counts(POINTS, 2, 1)))}
        for mode in MODES for kind in ("mi-pl", "mi-ol") for lam in LAMS
    ]  # fmt: skip
    sets = ("clean", *MODES, "calibration")
    answered = Answers(
        {name: answers(4.0) for name in sets},
        {(k, lam): {n: answers(2.0) for n in sets} for k in ("mi-pl", "mi-ol") for lam in LAMS},
    )
    far = torch.rand(50, len(LAMS), generator=noise)
    curve = tuple(estimate(column) for column in far.T)
    combined = measure_combined(answered, labels, MODES, lam=0.5)
    return {
        "steps": 10,
        "linearity": asdict(Linearity(LAMS, curve, estimate(far.mean(1)), 50)),
        "theory": theory,
        "detection": measure_detection(answered, MODES) | {"combined": combined},
        "tradeoff": {"mi-ol": [_trial({"lam": 0.5}, 90, 40, front=True),
                               _trial({"lam": 0.4}, 80, 30, front=False)],
                     "resize-pad": [_trial({"size": (0.75, 1.0)}, 85, 20, front=True)]},
        "gallery": [_example(point) for point in (3, 8)],
    }  # fmt: skip


def _trial(settings, clean, robust, *, front):
    attacked = {mode: cell(robust, 100) for mode in MODES}
    return {"settings": settings, "clean": cell(clean, 100), "attacked": attacked,
            "robust": robust / 100, "on_front": front}  # fmt: skip


def _example(point):
    answer = {"predicted": "<b>seven</b> $7", "confidence": 0.875}
    kinds = ("clean", "adversarial", "mixed")
    shown = {key: {"image": _image(20 * k + point), **answer} for k, key in enumerate(kinds)}
    return {"point": point, "label": "<b>one</b> $1", "lam": 0.5, "attack": "untargeted",
            "perturbation": _image(80 + point), "partner": {"image": _image(0)},
            "defended": answer, **shown}  # fmt: skip


def _image(shift):
    out = io.BytesIO()
    fading = Image.linear_gradient("L").resize((8, 8))
    fading.point(lambda value: (value + shift) % 256).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()
