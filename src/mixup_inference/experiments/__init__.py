"""Experiments: a TOML spec in, a resumable run with results.json and a report out."""

from mixup_inference.evaluation.callback import Callback, Column
from mixup_inference.experiments.analysis import Tuned, analyses, tune
from mixup_inference.experiments.cost import Work, measure_speeds, plan
from mixup_inference.experiments.experiment import Experiment
from mixup_inference.experiments.results import collect
from mixup_inference.experiments.spec import (
    RowSpec,
    Spec,
    check_spec,
    load_spec,
    parse_spec,
    shipped_specs,
)
from mixup_inference.reporting.schema import SCHEMA

__all__ = [
    "SCHEMA",
    "Callback",
    "Column",
    "Experiment",
    "RowSpec",
    "Spec",
    "Tuned",
    "Work",
    "analyses",
    "check_spec",
    "collect",
    "load_spec",
    "measure_speeds",
    "parse_spec",
    "plan",
    "shipped_specs",
    "tune",
]
