"""How the models of a run were trained, as results.json tells it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def objective_of(results: dict[str, Any], model: str) -> str | None:
    """What a model of a run was trained with, if that is known."""
    if training := (results.get("trainings") or {}).get(model):
        return str(training["objective"])
    spec = results["spec"]
    entry = spec.get("models", {}).get(model, {})
    if "weights" in entry:
        return None
    objective: str | None = entry.get("objective") or spec.get("training", {}).get("objective")
    return objective


def differing_in(results: dict[str, Any], setting: str) -> list[dict[str, Any]]:
    """Models whose trainings differ in one setting and in nothing else, with its value.

    >>> short, long = ({"objective": "mixup", "epochs": n} for n in (10, 40))
    >>> differing_in({"trainings": {"a": short, "b": long}}, "epochs")
    [{'a': 10, 'b': 40}]
    """
    alike: dict[str, dict[str, Any]] = defaultdict(dict)
    for model, training in (results.get("trainings") or {}).items():
        if training and setting in training:
            rest = {key: value for key, value in training.items() if key != setting}
            alike[json.dumps(rest, sort_keys=True)][model] = training[setting]
    return [found for found in alike.values() if len(set(found.values())) > 1]
