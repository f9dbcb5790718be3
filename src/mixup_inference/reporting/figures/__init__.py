"""Figures of a run; each is a Chart with its data as tidy rows."""

from __future__ import annotations

from mixup_inference.reporting.figures.accuracy import overview, tradeoff, training_length
from mixup_inference.reporting.figures.adaptive import adaptive_charts, gallery
from mixup_inference.reporting.figures.chart import Chart, Drawing, draw, write_chart
from mixup_inference.reporting.figures.detection import auc, combined, roc
from mixup_inference.reporting.figures.theory import (
    detection_gap,
    linearity,
    mechanisms,
    predictions,
)
from mixup_inference.reporting.schema import Results

__all__ = ["Chart", "Drawing", "charts", "draw", "linearity", "overview", "write_chart"]


def charts(results: Results) -> list[Chart]:
    """Every figure that the results have data for."""
    models = results.get("figures") or {}
    found = [overview(results)]
    if (length := training_length(results)) is not None:
        found.append(length)
    if adaptive := results.get("adaptive"):
        found += adaptive_charts(adaptive)
    if models:
        found.append(linearity(models))
    for name, entry in models.items():
        if entry["theory"]:
            found += [predictions(name, entry), *mechanisms(name, entry)]
            found.append(detection_gap(name, entry))
        if entry["detection"]["scores"]:
            found += [auc(name, entry), roc(name, entry)]
        if entry["detection"].get("combined"):
            found.append(combined(name, entry))
        if entry.get("tradeoff"):
            found.append(tradeoff(name, entry))
        if entry.get("gallery"):
            found.append(gallery(name, entry))
    return found
