"""results.json: every number of a run, with what it takes to trace and repeat it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mixup_inference import __version__
from mixup_inference.experiments.spec import RowSpec
from mixup_inference.metrics.accuracy import as_bits, cell_entry
from mixup_inference.reporting.schema import SCHEMA, Results

if TYPE_CHECKING:
    from mixup_inference.experiments.experiment import Cell, Experiment, Table


def collect(
    experiment: Experiment,
    table: Table,
    *,
    figures: dict[str, Any],
    adaptive: dict[str, Any] | None,
    seconds: float,
) -> Results:
    """Put everything about a run into one document."""
    spec = experiment.spec
    history = {name: experiment.models.history(name) for name in spec.needed_models}
    trained = {name: epochs for name, epochs in history.items() if epochs}
    document = {
        "schema": SCHEMA,
        "name": spec.name,
        "title": spec.title,
        "columns": [column.name for column in spec.columns],
        "rows": [
            _row(row, {column.name: table[row.title, column.name] for column in spec.columns})
            for row in spec.rows
        ],
        "models": {
            name: {
                "folder": experiment.models.folder_of(name).name,
                "epochs": len(epochs),
                "final_loss": epochs[-1].loss,
                "final_training_accuracy": epochs[-1].accuracy,
            }
            for name, epochs in trained.items()
        },
        "engines": dict.fromkeys(spec.needed_models, spec.engine),
        "trainings": {name: experiment.models.training(name) for name in spec.needed_models},
        "figures": figures,
        "adaptive": adaptive,
        "reused_models": dict(experiment.models.reused),
        "artefacts": experiment.cache.used_files(),
        "points": {name: len(part) for name, part in experiment.data.points.items()},
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
    plain: Results = json.loads(json.dumps(document))  # as whoever reads the file has it
    return plain


def _row(row: RowSpec, cells: Mapping[str, Cell]) -> dict[str, Any]:
    return {
        "title": row.title,
        "group": row.group,
        "model": row.model,
        "defense": row.defense,
        "settings": row.settings,
        "passes_per_image": sum(cell.accuracy.passes for cell in cells.values()) / len(cells),
        "cells": {
            name: cell_entry(cell.accuracy) | {"right": as_bits(cell.right), "part": cell.file}
            for name, cell in cells.items()
        },
    }


def versions() -> dict[str, str]:
    """The versions that the numbers depend on."""
    packages = ("torch", "numpy", "scipy", "scikit-learn", "lightning-fabric")
    return {
        "mixup-inference": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
