"""Measure a model or a defence: functions of a module and tensors that know no experiment."""

from mixup_inference.evaluation.attack_checks import Check, check_attack
from mixup_inference.evaluation.evaluate import evaluate
from mixup_inference.metrics import Accuracy, RobustAccuracy, paired_difference, worst_case

__all__ = [
    "Accuracy",
    "Check",
    "RobustAccuracy",
    "check_attack",
    "evaluate",
    "paired_difference",
    "worst_case",
]
