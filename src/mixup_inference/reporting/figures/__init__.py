"""Figures of a run; each is a Chart with its data as tidy rows."""

from __future__ import annotations

from mixup_inference.reporting.figures import accuracy, adaptive, detection, theory
from mixup_inference.reporting.figures.accuracy import overview
from mixup_inference.reporting.figures.chart import Chart, Drawing, draw, write_chart
from mixup_inference.reporting.figures.theory import linearity
from mixup_inference.reporting.schema import Results

__all__ = ["Chart", "Drawing", "charts", "draw", "linearity", "overview", "write_chart"]


def charts(results: Results) -> list[Chart]:
    """Every figure that the results have data for."""
    models = results.get("figures") or {}
    found = [overview(results)]
    if (length := accuracy.training_length(results)) is not None:
        found.append(length)
    if attacked := results.get("adaptive"):
        found += adaptive.adaptive_charts(attacked)
    if models:
        found.append(linearity(models))
    for name, entry in models.items():
        if entry["theory"]:
            found += [theory.predictions(name, entry), *theory.mechanisms(name, entry)]
            found.append(theory.detection_gap(name, entry))
        if entry["detection"]["scores"]:
            found += [detection.auc(name, entry), detection.roc(name, entry)]
        if entry["detection"].get("combined"):
            found.append(detection.combined(name, entry))
        if entry.get("tradeoff"):
            found.append(accuracy.tradeoff(name, entry))
        if entry.get("gallery"):
            found.append(adaptive.gallery(name, entry))
    return found
