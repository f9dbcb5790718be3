"""Beside the adaptive attacks: Figures 4 and 5, and detectors under attack."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixup_inference.attacks import get_attack
from mixup_inference.detection import SCORES, Detector
from mixup_inference.evaluation.detection import FALSE_POSITIVES, share
from mixup_inference.evaluation.evaluate import predicted_labels
from mixup_inference.experiments.adaptive_attacks import (
    AdaptiveEvaluation,
    base_row,
    is_mixup,
    sample_attacks,
)
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import first
from mixup_inference.experiments.gallery import example
from mixup_inference.experiments.spec import AdaptiveAttackSpec, RowSpec
from mixup_inference.metrics.robust_accuracy import RobustAccuracy
from mixup_inference.metrics.roc import auc, auc_interval
from mixup_inference.training import OBJECTIVES

#: This file, whose code is behind its results.
_FILE = "experiments/adaptive_extras.py"


def samples(bench: AdaptiveEvaluation, row: RowSpec) -> dict[str, Any]:
    """Accuracy by the number of adaptive samples, for three attacks (Figure 4)."""
    few, steps = first(bench.points, bench.spec.figure_points), bench.spec.figure_steps

    def robust(row: RowSpec, attack: AdaptiveAttackSpec) -> dict[str, Any]:
        return RobustAccuracy(bench.record(row, attack, points=few).fooled).entry()

    curves: dict[str, Any] = {}
    for curve, count, attack in sample_attacks(bench.spec, bench.norm):
        point = {"samples": count, "robust": robust(row, attack)}
        curves.setdefault(curve, []).append(point)
    base = base_row(bench.experiment.spec.rows, row.model)
    plain = AdaptiveAttackSpec.model_validate({"attack": "oblivious", "steps": steps})
    under_plain = {"title": base.title, "robust": robust(base, plain)}
    return {"title": row.title, "steps": steps, "base": under_plain, "curves": curves}


def _is_interpolated_at(bench: AdaptiveEvaluation, model: str) -> bool:
    """Whether a model was trained on mixtures of adversarial examples."""
    entry = OBJECTIVES.get((bench.experiment.models.training(model) or {}).get("objective"))
    return entry is not None and entry.adversarial and entry.uses_mixup


def gallery(bench: AdaptiveEvaluation, rows: list[RowSpec]) -> dict[str, Any] | None:
    """Examples of the adaptive attack at twice eps, on interpolated AT if there is one."""
    mixup = [row for row in rows if is_mixup(row)]
    if not mixup or not bench.spec.gallery:
        return None
    interpolated = [row for row in mixup if _is_interpolated_at(bench, row.model)]
    row, main = (interpolated or mixup)[0], bench.spec.main
    eps = min(1.0, 2 * bench.eps) if bench.norm == "linf" else 2 * bench.eps
    some = first(bench.points, bench.spec.gallery)

    def compute() -> list[dict[str, Any]]:
        defense, clean = bench.experiment.defense(row), bench.clean(some)
        result = bench.run(main, defense, some, eps=eps)
        with torch.no_grad():
            shown = {
                key: (images.cpu(), defense(images, index=some.index, stream="gallery").cpu())
                for key, images in (("clean", clean), ("adversarial", result.examples))
            }
        return [example(some, i, shown, eps=eps) for i in range(len(some))]

    more = {"gallery": len(some), "attack": main.settings, "gallery eps": eps}
    more["names"] = list(some.class_names)
    code = get_attack(main.attack).function, "experiments.gallery", _FILE
    entries = bench.part("gallery", row, more, compute, *code)
    return {"title": row.title, "attack": main.name, "eps": eps, "entries": entries}


def detector(bench: AdaptiveEvaluation, model: str, score: str) -> dict[str, Any]:
    """A detector of one model by one score: an attack that ignores it, and one that knows it."""
    bare = base_row(bench.experiment.spec.rows, model)
    attacks = {
        "ignores the detector": bench.spec.first("oblivious"),
        "knows the detector": bench.spec.first("detector-aware"),
    }
    more = {
        "score": [score, code_hash(*SCORES[score].functions)],
        "lam": bench.spec.detector_lam,
        "calibration": bench.experiment.data.hash_of("calibration"),
        "attacks": {name: attack.model_dump() for name, attack in attacks.items()},
    }
    functions = [get_attack(attack.attack).function for attack in attacks.values()]
    code = *functions, Detector, share, predicted_labels, _FILE
    compute = partial(_detect, bench, model, score, attacks)
    value = bench.part("detector", bare, more, compute, *code)
    return {"title": f"{bare.title}: {score} as a detector", "model": model, **value}


def _detect(
    bench: AdaptiveEvaluation, model: str, score: str, attacks: Mapping[str, AdaptiveAttackSpec]
) -> dict[str, Any]:
    experiment, points, lam = bench.experiment, bench.points, bench.spec.detector_lam
    base, calibration = experiment.models[model], experiment.data.points["calibration"]
    detector = Detector(score, base, experiment.data.pool, lam=lam, **experiment.drawing)
    detector.to(experiment.device)
    threshold = detector.calibrate(
        bench.clean(calibration), false_positive_rate=FALSE_POSITIVES, index=calibration.index
    )
    clean = _scores(bench, detector, bench.clean(points))
    entries = []
    for name, attack in attacks.items():
        knows = get_attack(attack.attack).target == "detector"
        result = bench.run(attack, detector if knows else base, points)
        fooled = result.fooled  # of the detector already, if that was attacked
        if not knows:
            fooled = bench.judge(detector, result.examples, points)
        scores = _scores(bench, detector, result.examples)
        size = experiment.data.batch_size
        wrong = predicted_labels(base, result.examples, batch_size=size) != points.labels
        low, high = auc_interval(clean, scores)
        entries.append(
            {
                "title": f"{attack.name} ({name})",
                "wrong": share(wrong),
                "detected": share(scores[wrong] > threshold) if bool(wrong.any()) else None,
                "robust": RobustAccuracy(fooled).entry(),
                "auc": auc(clean, scores),
                "low": low,
                "high": high,
            }
        )
    return {
        "lam": lam if detector.is_random else None,
        "rate": FALSE_POSITIVES,
        "threshold": threshold,
        "false_positives": share(clean > threshold),
        "attacks": entries,
    }


def _scores(bench: AdaptiveEvaluation, detector: Detector, x: Tensor) -> Tensor:
    parts = []
    with torch.no_grad():
        for rows in torch.arange(len(x)).split(bench.experiment.data.batch_size):
            score = detector.score(x[rows], index=bench.points.index[rows], stream="judge 0")
            parts.append(score.cpu())
    return torch.cat(parts)
