"""A claim of the paper, and the rule by which intervals decide it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mixup_inference.metrics.accuracy import IntervalEstimate

Verdict = Literal["holds", "does not hold", "undecided"]

#: Differences in accuracy below this are negligible.
MARGIN = 0.03

#: The defence that the paper's claims are about.
CLAIMED = "mi-ol"


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, and what this run says about it."""

    id: str
    statement: str
    source: str
    verdict: Verdict
    evidence: str
    estimates: tuple[IntervalEstimate, ...]  # what decides the verdict
    about: tuple[str, ...] = ()  # rows, models, or scores


def verdict_of(gains: Iterable[IntervalEstimate], *, min_effect: float = 0.0) -> Verdict:
    """Whether all of these are gains, by their 95% intervals.

    The claim holds if every interval lies above zero. It does not hold if an interval reaches zero
    and lies below ``min_effect``.

    >>> verdict_of([(0.1, 0.05, 0.15)]), verdict_of([(0.1, -0.05, 0.25)])
    ('holds', 'undecided')
    >>> verdict_of([(0.1, 0.05, 0.15), (0.0, -0.01, 0.01)], min_effect=0.03)
    'does not hold'
    """
    given = list(gains)
    if given and all(low > 0 for _, low, _ in given):
        return "holds"
    if any(low <= 0 and high < min_effect for _, low, high in given):
        return "does not hold"
    return "undecided"


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
