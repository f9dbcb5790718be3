"""Section 3.2 of the paper: its closed forms, and the same quantities measured on a model."""

from mixup_inference.theory.formulas import Bounds as Bounds
from mixup_inference.theory.formulas import Column as Column
from mixup_inference.theory.formulas import Kind as Kind
from mixup_inference.theory.formulas import Terms as Terms
from mixup_inference.theory.formulas import detection_gap as detection_gap
from mixup_inference.theory.formulas import detection_gap_of as detection_gap_of
from mixup_inference.theory.formulas import improves_robustness as improves_robustness
from mixup_inference.theory.formulas import keeps_clean_predictions as keeps_clean_predictions
from mixup_inference.theory.formulas import ric_bounds as ric_bounds
from mixup_inference.theory.formulas import table_1 as table_1
from mixup_inference.theory.linearity import Linearity as Linearity
from mixup_inference.theory.linearity import linearity as linearity
from mixup_inference.theory.measure import analyze as analyze
from mixup_inference.theory.quantities import Analysis as Analysis
from mixup_inference.theory.quantities import Condition as Condition
from mixup_inference.theory.quantities import Counts as Counts
from mixup_inference.theory.quantities import Estimate as Estimate
from mixup_inference.theory.quantities import Mechanisms as Mechanisms
from mixup_inference.theory.quantities import Predictions as Predictions
from mixup_inference.utils import renaming

__all__ = renaming.public_names(globals())  # noqa: PLE0605
