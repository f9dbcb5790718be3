"""Experiment specs: TOML files, checked before anything is computed."""

from mixup_inference.evaluation.spec.adaptive import AdaptiveSpec, KnowingSpec, standard_attacks
from mixup_inference.evaluation.spec.parts import DataSpec, ModelSpec, NetworkSpec, TrainingSpec
from mixup_inference.evaluation.spec.reading import (
    check_spec,
    load_spec,
    parse_spec,
    shipped_specs,
)
from mixup_inference.evaluation.spec.rows import AttackSpec, FiguresSpec, RowSpec
from mixup_inference.evaluation.spec.variants import (
    in_precision,
    on_points,
    smoke,
    with_attack_precision,
    with_engine,
)
from mixup_inference.evaluation.spec.whole import Spec

__all__ = [
    "AdaptiveSpec",
    "AttackSpec",
    "DataSpec",
    "FiguresSpec",
    "KnowingSpec",
    "ModelSpec",
    "NetworkSpec",
    "RowSpec",
    "Spec",
    "TrainingSpec",
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
