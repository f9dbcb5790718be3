"""Measuring: accuracy with intervals, experiment specs, resumable runs, results.json."""

from mixup_inference.evaluation.accuracy import Accuracy, evaluate, wilson
from mixup_inference.evaluation.experiment import Experiment
from mixup_inference.evaluation.listener import Column, Listener
from mixup_inference.evaluation.results import collect
from mixup_inference.evaluation.spec import RowSpec, Spec, load_spec, parse_spec, shipped_specs

__all__ = [
    "Accuracy",
    "Column",
    "Experiment",
    "Listener",
    "RowSpec",
    "Spec",
    "collect",
    "evaluate",
    "load_spec",
    "parse_spec",
    "shipped_specs",
    "wilson",
]
