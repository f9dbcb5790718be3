"""Beside the adaptive attacks: Figures 4 and 5, and MI-PL as a detector under attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mixup_inference.attacks import detector_aware, eot_pgd, run_attack
from mixup_inference.detection import MixupDetector
from mixup_inference.evaluation.detection import FALSE_POSITIVES, share
from mixup_inference.evaluation.evaluate import predicted_labels
from mixup_inference.experiments.adaptive_attacks import (
    AdaptiveEvaluation,
    adaptive_rows,
    is_mixup,
    sample_attacks,
)
from mixup_inference.experiments.gallery import png, top
from mixup_inference.experiments.spec import AdaptiveAttackSpec, RowSpec
from mixup_inference.metrics.robust_accuracy import RobustAccuracy
from mixup_inference.metrics.roc import auc, auc_interval
from mixup_inference.training import OBJECTIVES


def samples(bench: AdaptiveEvaluation, row: RowSpec) -> dict[str, Any]:
    """Accuracy by the number of adaptive samples, for three attacks (Figure 4)."""
    few = bench.points.take(torch.arange(min(bench.spec.figure_points, len(bench.points))))
    steps = bench.spec.figure_steps
    curves: dict[str, Any] = {}
    for curve, count, attack in sample_attacks(bench.spec, bench.norm):
        robust = RobustAccuracy(bench.record(row, attack, points=few).fooled).entry()
        curves.setdefault(curve, []).append({"samples": count, "robust": robust})
    base = adaptive_rows(bench.experiment.spec.rows, (row.title,))[0]
    plain = AdaptiveAttackSpec.model_validate({"attack": "oblivious", "steps": steps})
    robust = RobustAccuracy(bench.record(base, plain, points=few).fooled).entry()
    return {
        "title": row.title,
        "steps": steps,
        "base": {"title": base.title, "robust": robust},
        "curves": curves,
    }


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
    row = (interpolated or mixup)[0]
    main, test = bench.spec.main, bench.points
    eps = min(1.0, 2 * bench.eps) if bench.norm == "linf" else 2 * bench.eps
    some = test.take(torch.arange(min(bench.spec.gallery, len(test))))
    settings = main.settings

    def compute() -> list[dict[str, Any]]:
        defense = bench.experiment.defense(row)
        options = bench.options(some) | {"eps": eps}
        clean = bench.clean(some)
        result = eot_pgd(defense, clean, some.labels, **settings, **options)
        entries = []
        with torch.no_grad():
            answers = [
                defense(images, index=some.index, stream="gallery").cpu()
                for images in (clean, result.examples)
            ]
        images = [clean.cpu(), result.examples.cpu()]
        names = some.class_names
        for i in range(len(some)):
            entry: dict[str, Any] = {
                "point": int(some.index[i]),
                "label": names[int(some.labels[i])],
                "perturbation": png(0.5 + (images[1][i] - images[0][i]) / (2 * eps)),
            }
            for key, picture, log_p in zip(("clean", "adversarial"), images, answers, strict=True):
                entry[key] = {"image": png(picture[i]), **top(log_p[i], names)}
            entries.append(entry)
        return entries

    more = {"gallery": len(some), "attack": settings, "gallery eps": eps}
    more["names"] = list(some.class_names)
    entries = bench.part("gallery", row, more, eot_pgd, compute)
    return {"title": row.title, "attack": main.name, "eps": eps, "entries": entries}


def detector(bench: AdaptiveEvaluation, model: str) -> dict[str, Any]:
    """MI-PL as a detector of one model: an attack that ignores it, and one that knows it."""
    rows = adaptive_rows(bench.experiment.spec.rows, ())
    own = RowSpec(title=model, model=model)
    bare = next((row for row in rows if row.model == model and row.defense == "none"), own)
    aware = [a for a in bench.spec.attacks if a.attack == "detector-aware"]
    ignoring = [a for a in bench.spec.attacks if a.attack == "oblivious"]
    attacks = {
        "ignores the detector": ignoring[0] if ignoring else AdaptiveAttackSpec(attack="oblivious"),
        "knows the detector": aware[0] if aware else AdaptiveAttackSpec(attack="detector-aware"),
    }
    more = {
        "lam": bench.spec.detector_lam,
        "calibration": bench.experiment.data.hash_of("calibration"),
        "attacks": {name: attack.model_dump() for name, attack in attacks.items()},
    }
    value = bench.part(
        "detector", bare, more, detector_aware, lambda: _detect(bench, model, attacks)
    )
    return {"title": f"{bare.title}: MI-PL as a detector", "model": model, **value}


def _detect(
    bench: AdaptiveEvaluation, model: str, attacks: Mapping[str, AdaptiveAttackSpec]
) -> dict[str, Any]:
    experiment, spec = bench.experiment, bench.experiment.spec
    calibration = experiment.data.points["calibration"]
    detector = MixupDetector(
        experiment.models[model],
        experiment.data.pool,
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
            detector if knows else experiment.models[model],
            bench.clean(points),
            points.labels,
            settings=attack.settings,
            **bench.options(points),
        )
        fooled = result.fooled  # of the detector already, if that was attacked
        if not knows:
            fooled = bench.verdicts(detector, result.examples, points, stream="judge")
        scores = _scores(bench, detector, result.examples)
        size = experiment.batch_size
        wrong = predicted_labels(detector.model, result.examples, batch_size=size) != points.labels
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


def _scores(bench: AdaptiveEvaluation, detector: MixupDetector, x: Tensor) -> Tensor:
    rows = torch.arange(len(x)).split(bench.experiment.batch_size)
    with torch.no_grad():
        parts = [
            detector.score(x[part], index=bench.points.index[part], stream="judge 0").cpu()
            for part in rows
        ]
    return torch.cat(parts)
