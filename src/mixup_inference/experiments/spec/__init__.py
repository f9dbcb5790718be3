"""Experiment specs: TOML files, checked before anything is computed."""

from __future__ import annotations

from mixup_inference.experiments.spec.attacks import (
    AdaptiveAttackSpec,
    AdaptiveSpec,
    standard_attacks,
)
from mixup_inference.experiments.spec.data import DataSpec, ModelSpec, NetworkSpec
from mixup_inference.experiments.spec.experiment import Spec
from mixup_inference.experiments.spec.load import check_spec, load_spec, parse_spec, shipped_specs
from mixup_inference.experiments.spec.rows import AttackSpec, FiguresSpec, RowSpec
from mixup_inference.experiments.spec.variants import (
    in_precision,
    on_points,
    smoke,
    with_attack_precision,
    with_engine,
)

__all__ = [
    "AdaptiveAttackSpec",
    "AdaptiveSpec",
    "AttackSpec",
    "DataSpec",
    "FiguresSpec",
    "ModelSpec",
    "NetworkSpec",
    "RowSpec",
    "Spec",
    "check_spec",
    "in_precision",
    "load_spec",
    "on_points",
    "parse_spec",
    "shipped_specs",
    "smoke",
    "standard_attacks",
    "with_attack_precision",
    "with_engine",
]
