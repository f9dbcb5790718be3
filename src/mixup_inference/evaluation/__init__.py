"""Measure a model or a defence: functions of a module and tensors that know no experiment."""

from mixup_inference.evaluation.attack_checks import Check, check_attack
from mixup_inference.evaluation.evaluate import evaluate
from mixup_inference.metrics import Accuracy, RobustAccuracy, paired_difference, worst_case
from mixup_inference.utils.renaming import renamed

__all__ = [
    "Accuracy",
    "Check",
    "RobustAccuracy",
    "check_attack",
    "evaluate",
    "paired_difference",
    "worst_case",
]

_MOVED = (
    "SCHEMA Experiment RowSpec Spec Tuned Work analyses check_spec collect load_spec "
    "measure_speeds parse_spec plan shipped_specs tune"
)
__getattr__ = renamed(
    __name__,
    {
        **{name: f"mixup_inference.experiments:{name}" for name in _MOVED.split()},
        "Column": "mixup_inference.evaluation.callback:Column",
        "Listener": "mixup_inference.evaluation.callback:Callback",
        "wilson": "mixup_inference.metrics:wilson",
    },
)
