"""The guard: a classifier that flags suspicious inputs, calibrated, in one folder."""

from __future__ import annotations

from mixup_inference.guard.calibration import Calibration, Drift
from mixup_inference.guard.evaluation import Evaluation
from mixup_inference.guard.guard import Answer, Guard
from mixup_inference.guard.settings import Settings

__all__ = ["Answer", "Calibration", "Drift", "Evaluation", "Guard", "Settings"]
