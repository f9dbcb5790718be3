"""Adaptive attacks: every attack on every row, judged by fresh draws (Section 4.4).

Each attack's examples are stored with two sets of verdicts from draws that no attack has seen: by
one set the worst attack is chosen for each point, by the other every number is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixup_inference.attacks import get_attack
from mixup_inference.evaluation.attack_checks import check_attack
from mixup_inference.evaluation.evaluate import answers
from mixup_inference.experiments.adaptive_attacks import (
    AdaptiveEvaluation,
    Record,
    adaptive_rows,
    is_mixup,
)
from mixup_inference.experiments.adaptive_extras import detector, gallery, samples
from mixup_inference.experiments.data import first
from mixup_inference.experiments.spec import RowSpec
from mixup_inference.metrics.robust_accuracy import RobustAccuracy, paired_difference, worst_case
from mixup_inference.utils.io import hash_tensors

if TYPE_CHECKING:
    from mixup_inference.experiments.experiment import Experiment


def measure_row(bench: AdaptiveEvaluation, row: RowSpec) -> tuple[dict[str, Any], Tensor]:
    """All attacks on a row, and its verdicts under the worst of them."""
    experiment, points = bench.experiment, bench.points
    records = [
        bench.record(row, attack)
        for attack in bench.spec.candidates
        if experiment.spec.attack_applies(attack, row)
    ]
    fair = {r.attack.name: r for r in records if get_attack(r.attack.attack).worst_case}
    fooled, choice = worst_case(
        {name: record.choosing for name, record in fair.items()},
        {name: record.fooled for name, record in fair.items()},
    )

    def clean() -> dict[str, Any]:
        defense = experiment.defense(row)
        return RobustAccuracy(bench.judge(defense, bench.clean(points), points)).entry()

    entry = {
        "title": row.title,
        "model": row.model,
        "defense": row.defense,
        "settings": row.settings,
        "clean": bench.part("clean", row, {}, clean, answers),
        "attacks": [record.entry() for record in records],
        "worst": {"robust": RobustAccuracy(fooled).entry(), "choice": dict(Counter(choice))},
        "checks": _checks(bench, row, fair),
    }
    return entry, fooled


def _checks(
    bench: AdaptiveEvaluation, row: RowSpec, records: Mapping[str, Record]
) -> list[dict[str, Any]]:
    some = first(bench.points, bench.spec.checks)
    if len(some) == 0:
        return []
    main = get_attack(bench.spec.main.attack).defaults | bench.spec.main.settings
    around = ("oblivious", "transfer", "black-box")
    others = {n: r.fooled[: len(some)] for n, r in records.items() if r.group in around}

    def compute() -> Any:
        defense, x = bench.experiment.defense(row), bench.clean(some)
        settings = main | bench.options(some)
        checks = check_attack(defense, x, some.labels, others=others, **settings)
        return [asdict(check) for check in checks]

    compared = {n: hash_tensors(fooled.to(torch.uint8)) for n, fooled in others.items()}
    more = {"checks": len(some), "attack": main, "others": compared}
    found: list[dict[str, Any]] = bench.part("checks", row, more, compute, check_attack)
    return found


def adaptive(experiment: Experiment) -> dict[str, Any] | None:
    """Everything that the spec's [adaptive] asks for; None without that section."""
    spec = experiment.spec.adaptive
    if spec is None:
        return None
    bench = AdaptiveEvaluation(experiment, spec)
    rows = adaptive_rows(experiment.spec.rows, spec.rows)
    entries: list[dict[str, Any]] = []
    for row in rows:
        entry, worst = measure_row(bench, row)
        if row.defense == "none":  # the first row of each model
            base, worst_of_base = row.title, worst
            entry |= {"base": None, "versus_base": None}
        else:
            difference, low, high = paired_difference(worst, worst_of_base)
            versus = {"difference": difference, "low": low, "high": high}
            entry |= {"base": base, "versus_base": versus}
        entries.append(entry)
    return {
        "points": len(bench.points),
        "repeats": spec.repeats,
        "eps": bench.eps,
        "norm": bench.norm,
        "draws": experiment.spec.draws,
        "checked": {"attack": spec.main.name, "points": min(spec.checks, len(bench.points))},
        "rows": entries,
        "samples": [samples(bench, row) for row in rows if spec.samples and is_mixup(row)],
        "gallery": gallery(bench, rows),
        "detectors": [
            detector(bench, model, score)
            for model in spec.detectors
            for score in spec.detector_scores
        ],
    }
