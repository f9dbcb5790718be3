"""MI-PL as a detector, under an attack that ignores it and one that knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks import run_attack
from mixup_inference.classifier import logits_of
from mixup_inference.detection import MixupDetector, auc, auc_interval
from mixup_inference.evaluation.adaptive.bench import Bench, adaptive_rows
from mixup_inference.evaluation.detecting import FALSE_POSITIVES, share
from mixup_inference.evaluation.robust import RobustAccuracy
from mixup_inference.evaluation.spec import KnowingSpec, RowSpec


def detector(bench: Bench, model: str) -> dict[str, Any]:
    """MI-PL as a detector of one model: an attack that ignores it, and one that knows it."""
    rows = adaptive_rows(bench.experiment.spec.rows, ())
    own = RowSpec(title=model, model=model)
    bare = next((row for row in rows if row.model == model and row.defense == "none"), own)
    aware = [a for a in bench.spec.attacks if a.attack == "detector-aware"]
    ignoring = [a for a in bench.spec.attacks if a.attack == "oblivious"]
    attacks = {
        "ignores the detector": ignoring[0] if ignoring else KnowingSpec(attack="oblivious"),
        "knows the detector": aware[0] if aware else KnowingSpec(attack="detector-aware"),
    }
    more = {
        "lam": bench.spec.detector_lam,
        "calibration": bench.experiment.points_hash("calibration"),
        "attacks": {name: attack.model_dump() for name, attack in attacks.items()},
    }
    value = bench.part("detector", bare, more, lambda: _detect(bench, model, attacks))
    return {"title": f"{bare.title}: MI-PL as a detector", "model": model, **value}


def _detect(bench: Bench, model: str, attacks: Mapping[str, KnowingSpec]) -> dict[str, Any]:
    experiment, spec = bench.experiment, bench.experiment.spec
    calibration = experiment.points["calibration"]
    detector = MixupDetector(
        experiment.model(model),
        experiment.pool,
        lam=bench.spec.detector_lam,
        draws=spec.draws,
        seed=spec.seed,
        engine=spec.engine,
    ).to(experiment.device)
    detector.calibrate(
        bench.clean(calibration),
        false_positive_rate=FALSE_POSITIVES,
        index=calibration.index,
    )
    assert detector.threshold is not None
    points, threshold = bench.points, detector.threshold
    clean = _scores(bench, detector, bench.clean(points))
    entries = []
    for name, attack in attacks.items():
        knows = attack.attack == "detector-aware"
        result = run_attack(
            attack.attack,
            detector if knows else experiment.model(model),
            bench.clean(points),
            points.labels,
            settings=attack.settings,
            **bench.options(points),
        )
        fooled = result.fooled  # of the detector already, if that was attacked
        if not knows:
            fooled = bench.verdicts(detector, result.examples, points, stream="judge")
        scores = _scores(bench, detector, result.examples)
        wrong = _labels(bench, detector.model, result.examples) != points.labels
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
        "lam": bench.spec.detector_lam,
        "rate": FALSE_POSITIVES,
        "threshold": threshold,
        "false_positives": share(clean > threshold),
        "attacks": entries,
    }


def _scores(bench: Bench, detector: MixupDetector, x: Tensor) -> Tensor:
    rows = torch.arange(len(x)).split(bench.experiment.batch_size)
    with torch.no_grad():
        parts = [
            detector.score(x[part], index=bench.points.index[part], stream="judge 0").cpu()
            for part in rows
        ]
    return torch.cat(parts)


def _labels(bench: Bench, model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        parts = [logits_of(model, part) for part in x.split(bench.experiment.batch_size)]
    return torch.cat(parts).argmax(1).cpu()
