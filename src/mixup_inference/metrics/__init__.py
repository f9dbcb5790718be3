"""Pure functions and small records: accuracy, robust accuracy, ROC, each with its interval."""

from mixup_inference.metrics.accuracy import Accuracy as Accuracy
from mixup_inference.metrics.accuracy import IntervalEstimate as IntervalEstimate
from mixup_inference.metrics.accuracy import mean_interval as mean_interval
from mixup_inference.metrics.accuracy import newcombe as newcombe
from mixup_inference.metrics.accuracy import wilson as wilson
from mixup_inference.metrics.robust_accuracy import RobustAccuracy as RobustAccuracy
from mixup_inference.metrics.robust_accuracy import paired_difference as paired_difference
from mixup_inference.metrics.robust_accuracy import worst_case as worst_case
from mixup_inference.metrics.roc import auc as auc
from mixup_inference.metrics.roc import auc_interval as auc_interval
from mixup_inference.metrics.roc import conformal_threshold as conformal_threshold
from mixup_inference.metrics.roc import roc as roc
from mixup_inference.utils import renaming

__all__ = renaming.public_names(globals())  # noqa: PLE0605
