"""Figure 4, accuracy by the number of adaptive samples, and Figure 5, adaptive examples."""

from __future__ import annotations

from typing import Any

import torch

from mixup_inference.attacks import eot_pgd
from mixup_inference.evaluation.adaptive.bench import Bench, adaptive_rows, is_mixup, sample_attacks
from mixup_inference.evaluation.pictures import png, top
from mixup_inference.evaluation.robust import RobustAccuracy
from mixup_inference.evaluation.spec import KnowingSpec, RowSpec


def samples(bench: Bench, row: RowSpec) -> dict[str, Any]:
    """Accuracy by the number of adaptive samples, for three attacks (Figure 4)."""
    few = bench.points.take(torch.arange(min(bench.spec.figure_points, len(bench.points))))
    steps = bench.spec.figure_steps
    curves: dict[str, Any] = {}
    for curve, count, attack in sample_attacks(bench.spec, bench.norm):
        robust = RobustAccuracy(bench.record(row, attack, points=few).fooled).entry()
        curves.setdefault(curve, []).append({"samples": count, "robust": robust})
    base = adaptive_rows(bench.experiment.spec.rows, (row.title,))[0]
    plain = KnowingSpec.model_validate({"attack": "oblivious", "steps": steps})
    robust = RobustAccuracy(bench.record(base, plain, points=few).fooled).entry()
    return {
        "title": row.title,
        "steps": steps,
        "base": {"title": base.title, "robust": robust},
        "curves": curves,
    }


def gallery(bench: Bench, rows: list[RowSpec]) -> dict[str, Any] | None:
    """Examples of the adaptive attack at twice eps, on interpolated AT if there is one."""
    mixup = [row for row in rows if is_mixup(row)]
    if not mixup or not bench.spec.gallery:
        return None
    trainings = {row.model: bench.experiment.training(row.model) or {} for row in mixup}
    interpolated = [row for row in mixup if trainings[row.model].get("objective") == "iat"]
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
    entries = bench.part("gallery", row, more, compute)
    return {"title": row.title, "attack": main.name, "eps": eps, "entries": entries}
