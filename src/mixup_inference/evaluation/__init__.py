"""Measuring: accuracy with intervals, experiment specs, resumable runs, results.json."""

from mixup_inference.evaluation.accuracy import Accuracy, evaluate, wilson
from mixup_inference.evaluation.analysis import analyses
from mixup_inference.evaluation.attack_checks import Check, check_attack
from mixup_inference.evaluation.experiment import Experiment
from mixup_inference.evaluation.listener import Column, Listener
from mixup_inference.evaluation.plan import Work, measure_speeds, plan
from mixup_inference.evaluation.results import SCHEMA, collect
from mixup_inference.evaluation.robust import RobustAccuracy, paired_difference, worst_case
from mixup_inference.evaluation.spec import (
    RowSpec,
    Spec,
    check_spec,
    load_spec,
    parse_spec,
    shipped_specs,
)
from mixup_inference.evaluation.tune import Tuned, tune

__all__ = [
    "SCHEMA",
    "Accuracy",
    "Check",
    "Column",
    "Experiment",
    "Listener",
    "RobustAccuracy",
    "RowSpec",
    "Spec",
    "Tuned",
    "Work",
    "analyses",
    "check_attack",
    "check_spec",
    "collect",
    "evaluate",
    "load_spec",
    "measure_speeds",
    "paired_difference",
    "parse_spec",
    "plan",
    "shipped_specs",
    "tune",
    "wilson",
    "worst_case",
]
