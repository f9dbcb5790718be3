"""Detection measured: AUC, ROC curves, calibrated thresholds, and MI-Combined (Figure 3a)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.datasets import LabelledImages
from mixup_inference.defenses import MixupInference, gap, make_defense, mean_prediction
from mixup_inference.detection import SCORES, Detector
from mixup_inference.metrics.accuracy import Accuracy, cell_entry
from mixup_inference.metrics.roc import auc, auc_interval, conformal_threshold, roc
from mixup_inference.models.call import device_of
from mixup_inference.pool import Pool
from mixup_inference.utils.progress import SILENT, Progress

#: The defences that scores compare with the model, and that MI-Combined consists of.
MIXUP = ("mi-pl", "mi-ol")

#: The clean share that may be flagged, to which thresholds are calibrated.
FALSE_POSITIVES = 0.05

#: A ROC curve has at most so many points.
CURVE = 200


@dataclass(frozen=True)
class Answers:
    """Log-probabilities before and after mixup inference, by (defence, lam) and set of points.

    ``scored``: the scores that take more than these, by (score, lam) and set of points.
    """

    before: dict[str, Tensor]
    after: dict[tuple[str, float], dict[str, Tensor]]
    scored: dict[tuple[str, float | None], dict[str, Tensor]] = field(default_factory=dict)


def answer(
    model: nn.Module,
    pool: Pool,
    sets: Mapping[str, LabelledImages],
    *,
    lams: Sequence[float],
    batch_size: int,
    progress: Progress = SILENT,
    **settings: Any,
) -> Answers:
    """The predictions of the model on all sets of points, and those under MI-PL and MI-OL.

    ``settings`` are those of both defences: ``draws``, ``seed``, ``engine``.
    """
    out, device = Answers({}, {}), device_of(model)
    alone = [s.name for s in SCORES.values() if s.defense is None and not s.of_answers]
    total = (len(MIXUP) * len(lams) + len(alone)) * sum(len(points) for points in sets.values())
    with torch.no_grad(), progress.task("detection", total) as task:

        def batches(points: LabelledImages) -> Iterator[tuple[Tensor, Tensor]]:
            for rows in torch.arange(len(points)).split(batch_size):
                yield points.take(rows).pixels.to(device), points.index[rows]
                task.advance(len(rows))

        for kind, lam in product(MIXUP, lams):
            inference = make_defense(kind, model, pool, lam=lam, **settings)
            assert isinstance(inference, MixupInference)
            inference.to(device)
            by_draw = [s for s in SCORES.values() if s.defense == kind and s.draws]
            for name, points in sets.items():
                found = []
                for x, index in batches(points):
                    before = inference.base_log_probs(x)
                    numbers = inference.numbers(x, index, f"detection {name}")
                    drawn = inference.average(x, before.argmax(1), numbers, reduce=None)
                    own = [score.function(before, drawn) for score in by_draw]
                    found.append([part.cpu() for part in (before, mean_prediction(drawn), *own)])
                before, after, *own = (torch.cat(parts) for parts in zip(*found, strict=True))
                out.before[name] = before
                out.after.setdefault((kind, lam), {})[name] = after
                for score, values in zip(by_draw, own, strict=True):
                    out.scored.setdefault((score.name, lam), {})[name] = values
        for title, (name, points) in product(alone, sets.items()):
            detector = Detector(title, model)
            values = torch.cat([detector.score(x).cpu() for x, _ in batches(points)])
            out.scored.setdefault((title, None), {})[name] = values
    return out


def scores(answers: Answers, name: str) -> dict[tuple[str, float | None], Tensor]:
    """All detection scores of a set of points; larger is more suspicious.

    Those that compare with a defence come first, one for each ratio, and then the others.
    """
    before = answers.before[name]
    measured = [score for score in SCORES.values() if score.of_answers]
    out: dict[tuple[str, float | None], Tensor] = {
        (score.name, lam): score.function(before, after[name])
        for (kind, lam), after in answers.after.items()
        for score in measured
        if score.defense == kind
    }
    more = {key: values[name] for key, values in answers.scored.items()}
    out |= {key: values for key, values in more.items() if key[1] is not None}
    out |= {(score.name, None): score.function(before) for score in measured if not score.defense}
    return out | more


def middle(lams: Iterable[float]) -> float:
    """The ratio nearest to 0.5, the one that is shown where there is room for one.

    >>> middle([0.6, 0.4, 0.1])
    0.4
    """
    return min(lams, key=lambda lam: (round(abs(lam - 0.5), 9), lam))


def measure_detection(answers: Answers, modes: Sequence[str]) -> dict[str, Any]:
    """AUC with its interval for every score and attack, ROC curves, and calibrated thresholds.

    The curves are those at the ratio nearest one half and of the scores without a ratio.
    The threshold is set on the ``calibration`` points, if there are any, and judged on the
    ``clean`` ones.
    """
    clean = scores(answers, "clean")
    calibration = scores(answers, "calibration") if "calibration" in answers.before else {}
    shown = middle(lam for _, lam in answers.after)
    entries = []
    for mode in modes:
        attacked = scores(answers, mode)
        for (score, lam), values in clean.items():
            suspects = attacked[score, lam]
            low, high = auc_interval(values, suspects)
            entry: dict[str, Any] = {"score": score, "lam": lam, "attack": mode}
            entry |= {"auc": auc(values, suspects), "low": low, "high": high}
            if lam in (None, shown):
                false, true = (_thin(rates) for rates in roc(values, suspects))
                entry["roc"] = {"false_positives": false, "true_positives": true}
            if calibration and len(calibration[score, lam]) >= 1 / FALSE_POSITIVES:
                threshold = conformal_threshold(calibration[score, lam], FALSE_POSITIVES)
                entry["calibrated"] = {
                    "rate": FALSE_POSITIVES,
                    "threshold": threshold,
                    "false_positives": share(values > threshold),
                    "detected": share(suspects > threshold),
                }
            entries.append(entry)
    return {"scores": entries}


def measure_combined(
    answers: Answers, labels: Tensor, modes: Sequence[str], *, lam: float
) -> list[dict[str, Any]]:
    """Accuracy of MI-Combined over its threshold, with one ratio for both halves."""
    out = []
    for step in range(-10, 21):
        threshold = step / 20
        row: dict[str, Any] = {"lam": lam, "threshold": threshold}
        for name in ("clean", *modes):
            before = answers.before[name]
            suspicious = gap(before, answers.after["mi-pl", lam][name]) > threshold
            defended = answers.after["mi-ol", lam][name].argmax(1)
            predicted = torch.where(suspicious, defended, before.argmax(1))
            row[name] = share(predicted == labels)
            row[f"{name} flagged"] = share(suspicious)
        out.append(row)
    return out


def share(hits: Tensor) -> dict[str, float]:
    """A count as results.json has it."""
    return cell_entry(Accuracy(int(hits.sum()), len(hits)))


def _thin(rates: Tensor) -> list[float]:
    """At most CURVE of the points, always the first and the last."""
    rows = torch.linspace(0, len(rates) - 1, min(CURVE, len(rates))).round().long()
    return [round(value, 5) for value in rates[rows].tolist()]
