"""Parts of results.json that belong together: columns, rows, models and mixing ratios."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mixup_inference.defenses import group_of
from mixup_inference.evaluation.detection import middle
from mixup_inference.metrics.accuracy import IntervalEstimate, difference
from mixup_inference.reporting.schema import Results, Row, Score, Theory

Entry = TypeVar("Entry", Score, Theory)


def last_of_each_mode(columns: Sequence[str]) -> list[str]:
    """Clean, and the column with the most steps of each attack mode, which comes last.

    >>> last_of_each_mode(["clean", "untargeted PGD-10", "untargeted PGD-50"])
    ['clean', 'untargeted PGD-50']
    """
    return list({column.split(" ")[0]: column for column in columns}.values())


def strongest_attacks(columns: Sequence[str]) -> list[str]:
    """The column with the most steps of each attack mode."""
    return [column for column in last_of_each_mode(columns) if column != "clean"]


def with_undefended(results: Results) -> list[tuple[Row, Row]]:
    """Every row whose model has an undefended row, with the first such row."""
    bare: dict[str, Row] = {}
    for row in results["rows"]:
        if group_of(row["defense"]) == "none":
            bare.setdefault(row["model"], row)
    return [(row, bare[row["model"]]) for row in results["rows"] if row["model"] in bare]


def gain(row: Row, other: Row, column: str) -> IntervalEstimate:
    """How much more accurate one row is than another in a column."""
    return difference(row["cells"][column], other["cells"][column])


def nearest(entries: Sequence[Entry]) -> list[Entry]:
    """The entries at the mixing ratio nearest to 0.5, and those without a ratio."""
    ratios = [entry["lam"] for entry in entries if entry["lam"] is not None]
    return [e for e in entries if e["lam"] is None or e["lam"] == middle(ratios)]


def objective_of(results: Mapping[str, Any], model: str) -> str | None:
    """A model's training objective, if it is known."""
    if training := (results.get("trainings") or {}).get(model):
        return str(training["objective"])
    spec = results["spec"]
    entry = spec.get("models", {}).get(model, {})
    if "weights" in entry:
        return None
    objective: str | None = entry.get("objective") or spec.get("training", {}).get("objective")
    return objective


def models_by_objective(results: Mapping[str, Any], models: Iterable[str]) -> dict[str, str]:
    """The first of these models for each known objective."""
    first: dict[str, str] = {}
    for model in models:
        if (objective := objective_of(results, model)) is not None:
            first.setdefault(objective, model)
    return first


def differing_in(results: Mapping[str, Any], setting: str) -> list[dict[str, Any]]:
    """Models whose trainings differ in one setting only, with its values.

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
