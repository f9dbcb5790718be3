"""Section 3.2 of the paper: its closed forms, and the same quantities measured on a model."""

from mixup_inference.theory.formulas import (
    Bounds,
    Column,
    Kind,
    Terms,
    detection_gap,
    detection_gap_of,
    improves_robustness,
    keeps_clean_predictions,
    ric_bounds,
    table_1,
)
from mixup_inference.theory.linearity import Linearity, linearity
from mixup_inference.theory.measure import analyze
from mixup_inference.theory.quantities import (
    Analysis,
    Condition,
    Counts,
    Estimate,
    Mechanisms,
    Predictions,
)

__all__ = [
    "Analysis",
    "Bounds",
    "Column",
    "Condition",
    "Counts",
    "Estimate",
    "Kind",
    "Linearity",
    "Mechanisms",
    "Predictions",
    "Terms",
    "analyze",
    "detection_gap",
    "detection_gap_of",
    "improves_robustness",
    "keeps_clean_predictions",
    "linearity",
    "ric_bounds",
    "table_1",
]
