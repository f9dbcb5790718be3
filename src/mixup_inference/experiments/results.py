"""results.json: every number of a run, with what it takes to trace and repeat it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from datetime import UTC, datetime
from typing import Any

from mixup_inference import __version__
from mixup_inference.experiments.adaptive import adaptive
from mixup_inference.experiments.analysis import analyses
from mixup_inference.experiments.experiment import Experiment
from mixup_inference.metrics.accuracy import Accuracy, as_bits, cell_entry

SCHEMA = 1


def collect(experiment: Experiment, *, seconds: float) -> dict[str, Any]:
    """Measure (or read back) all cells and put everything about the run into one document."""
    spec = experiment.spec
    cells: dict[str, dict[str, Accuracy]] = {row.title: {} for row in spec.rows}
    for row, column, accuracy in experiment.cells():
        cells[row.title][column.name] = accuracy
    experiment.mend()
    history = {name: experiment.history(name) for name in spec.needed_models}
    trained = {name: epochs for name, epochs in history.items() if epochs}
    document = {
        "schema": SCHEMA,
        "name": spec.name,
        "title": spec.title,
        "columns": [column.name for column in experiment.columns],
        "rows": [
            {
                "title": row.title,
                "group": row.group,
                "model": row.model,
                "defense": row.defense,
                "settings": row.settings,
                "passes_per_image": sum(a.passes for a in cells[row.title].values())
                / len(experiment.columns),
                "cells": {
                    column.name: cell_entry(cells[row.title][column.name])
                    | {"right": as_bits(experiment.right(row, column))}
                    | {"part": experiment.cell_part(row, column)}
                    for column in experiment.columns
                },
            }
            for row in spec.rows
        ],
        "models": {
            name: {
                "folder": experiment.model_folder(name).name,
                "epochs": len(epochs),
                "final_loss": epochs[-1].loss,
                "final_training_accuracy": epochs[-1].accuracy,
            }
            for name, epochs in trained.items()
        },
        "engines": dict.fromkeys(spec.needed_models, spec.engine),
        "trainings": {name: experiment.training(name) for name in spec.needed_models},
        "figures": analyses(experiment),
        "adaptive": adaptive(experiment),
        "artefacts": experiment.store.artefacts(),
        "points": {name: len(part) for name, part in experiment.points.items()},
        "spec": spec.model_dump(mode="json", exclude_none=True),
        "seed": spec.seed,
        "device": experiment.device,
        "versions": versions(),
        "timing": {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "training_seconds": {
                name: round(sum(e.seconds for e in epochs), 1) for name, epochs in trained.items()
            },
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))  # as whoever reads the file has it
    return plain


def versions() -> dict[str, str]:
    """The versions that the numbers depend on."""
    packages = ("torch", "numpy", "scipy", "scikit-learn", "lightning-fabric")
    return {
        "mixup-inference": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
