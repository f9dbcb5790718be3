"""Pure functions and small records: accuracy, robust accuracy, ROC, each with its interval."""

from mixup_inference.metrics.accuracy import (
    Accuracy,
    IntervalEstimate,
    mean_interval,
    newcombe,
    wilson,
)
from mixup_inference.metrics.robust_accuracy import RobustAccuracy, paired_difference, worst_case
from mixup_inference.metrics.roc import auc, auc_interval, conformal_threshold, roc

__all__ = [
    "Accuracy",
    "IntervalEstimate",
    "RobustAccuracy",
    "auc",
    "auc_interval",
    "conformal_threshold",
    "mean_interval",
    "newcombe",
    "paired_difference",
    "roc",
    "wilson",
    "worst_case",
]
