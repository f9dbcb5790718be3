"""Attackers who know the defence: every attack on every row, judged by fresh draws (Section 4.4).

Each attack's examples are stored with two sets of verdicts from draws that no attack has seen: by
one set the worst attack is chosen for each point, by the other every number is reported.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mixup_inference.evaluation.adaptive.bench import Bench, adaptive_rows, is_mixup
from mixup_inference.evaluation.adaptive.detectors import detector
from mixup_inference.evaluation.adaptive.figures import gallery, samples
from mixup_inference.evaluation.adaptive.rows import measure_row
from mixup_inference.evaluation.experiment import Experiment
from mixup_inference.evaluation.robust import paired_difference


def adaptive(experiment: Experiment) -> dict[str, Any] | None:
    """Everything that the spec's [adaptive] asks for; None without that section."""
    spec = experiment.spec.adaptive
    if spec is None:
        return None
    bench = Bench(experiment, spec)
    rows = adaptive_rows(experiment.spec.rows, spec.rows)
    entries: list[dict[str, Any]] = []
    base: tuple[str, Tensor] | None = None
    for row in rows:
        entry, worst = measure_row(bench, row)
        known = None
        if row.defense == "none":
            base = row.title, worst
        else:
            assert base is not None
            value, low, high = paired_difference(worst, base[1])
            known = {"difference": value, "low": low, "high": high}
        title = None if known is None or base is None else base[0]
        entries.append(entry | {"base": title, "versus_base": known})
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
        "detectors": [detector(bench, model) for model in spec.detectors],
    }
