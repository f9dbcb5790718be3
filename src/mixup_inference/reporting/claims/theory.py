"""Claims about linearity, detection, the robustness improving condition and adaptive attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from mixup_inference.metrics.accuracy import IntervalEstimate, mean_interval, newcombe
from mixup_inference.reporting import labels, selection
from mixup_inference.reporting.adaptive import AdaptiveVerdict, adaptive_verdicts, failed_checks
from mixup_inference.reporting.claims.base import CLAIMED, MARGIN, Claim, Verdict, verdict_of
from mixup_inference.reporting.formatting import format_mean
from mixup_inference.reporting.schema import Linearity, Results, Score, Theory

#: The detection score that the paper's claims are about, and the gap of the other defence.
CLAIMED_SCORE, OTHER_SCORE = "MI-PL", "MI-OL"

MECHANISMS = {
    "input_transfer": ("input-transfer", "Input transfer"),
    "perturbation_shrinkage": ("perturbation-shrinkage", "Perturbation shrinkage"),
}


def figure_claims(results: Results) -> Iterator[Claim]:
    """Linearity, detection, and the two mechanisms of the theory."""
    figures = results.get("figures") or {}
    models = selection.models_by_objective(results, figures)
    mixed = list(filter(labels.uses_mixup, models))
    for objective in mixed:
        for plain in filter(models.__contains__, labels.without_mixup(objective)):
            found = {name: figures[models[name]]["linearity"] for name in (objective, plain)}
            yield _linearity(found)
    for objective in mixed:
        name = models[objective]
        scores = figures[name]["detection"]["scores"]
        rivals = [score["score"] for score in scores if score["lam"] is None]
        for rival in dict.fromkeys([*rivals, OTHER_SCORE]):
            yield from _detection(name, scores, rival)
        yield from _theory(name, figures[name]["theory"])


def _linearity(found: dict[str, Linearity]) -> Claim:
    """Training with mixup against training without it."""
    mixed, plain = (
        mean_interval(entry["overall"]["mean"], entry["overall"]["se"], entry["pairs"])
        for entry in found.values()
    )
    titles = [labels.objective_title(name) for name in found]
    gain = newcombe(plain, mixed)
    pairs = next(iter(found.values()))["pairs"]
    return Claim(
        "linearity",
        f"Training with {titles[0]} instead of {titles[1]} makes a model more linear between clean "
        "samples.",
        "Section 3.1",
        verdict_of([gain]),
        f"mean deviation {format_mean(mixed)} with {titles[0]}, {format_mean(plain)} with "
        f"{titles[1]}, over {pairs} pairs of test images; one training run each.",
        (gain,),
        tuple(found),
    )


def _detection(model: str, scores: Sequence[Score], rival: str) -> Iterator[Claim]:
    """MI-PL against another score, both at the ratio nearest 0.5; intervals must not overlap."""
    ours = selection.nearest([s for s in scores if s["score"] == CLAIMED_SCORE])
    theirs = selection.nearest([s for s in scores if s["score"] == rival])
    pairs = [(s, t) for s in ours for t in theirs if s["attack"] == t["attack"]]
    if not pairs:
        return
    gains = tuple(
        (s["auc"] - t["auc"], s["low"] - t["high"], s["high"] - t["low"]) for s, t in pairs
    )
    shown = [
        f"{s['attack']}: AUC {s['auc']:.3f} [{s['low']:.3f}, {s['high']:.3f}] compared with "
        f"{t['auc']:.3f} [{t['low']:.3f}, {t['high']:.3f}]"
        for s, t in pairs
    ]
    yield Claim(
        "detection",
        f"{CLAIMED_SCORE} detects adversarial inputs better than {rival}, on {model}.",
        "Figure 3a",
        verdict_of(gains),
        f"At lambda {pairs[0][0]['lam']:g}, {'; '.join(shown)}.",
        gains,
        (model, rival),
    )


def _theory(model: str, entries: Sequence[Theory]) -> Iterator[Claim]:
    """The robustness improving condition and the two mechanisms, at the ratio nearest 0.5."""
    nearest = selection.nearest([e for e in entries if e["kind"] == CLAIMED])
    if not nearest:
        return
    where = f"MI-OL, lambda {nearest[0]['lam']:g}"
    changes, shown = [], []
    for e in nearest:
        rise, fall = (_mean(e, "adversarial", key) for key in ("delta_y", "delta_y_hat"))
        changes += [rise, (-fall[0], -fall[2], -fall[1])]  # F_yhat must fall
        shown.append(
            f"{e['attack']}: F_y changes by {rise[0]:+.3f} and F_yhat by {fall[0]:+.3f} on "
            "average; both change in the required direction for "
            f"{e['ric']['points']} of {e['ric']['total']} points"
        )
    yield Claim(
        "robustness-improving-condition",
        f"Oblivious PGD satisfies the robustness improving condition for MI-OL, on {model}.",
        "Eq. 10, Figure 2",
        verdict_of(changes),
        f"{'; '.join(shown)} ({where}).",
        tuple(changes),
        (model,),
    )
    for key, (id_, title) in MECHANISMS.items():
        found = tuple(_mean(e, "y_hat", key) for e in nearest)
        shown = [
            f"{e['attack']}: {format_mean(mean)} over {e['counts']['used']} points"
            for e, mean in zip(nearest, found, strict=True)
        ]
        yield Claim(
            id_,
            f"{title} lowers the adversarial component, on {model}.",
            "Eq. 13",
            verdict_of(found),
            f"{'; '.join(shown)} ({where}, the y_hat component).",
            found,
            (model,),
        )


def _mean(entry: Theory, part: Literal["adversarial", "y_hat"], key: str) -> IntervalEstimate:
    """One of the means of an analysis, with its interval."""
    estimate = entry[part][key]
    return mean_interval(estimate["mean"], estimate["se"], entry["counts"]["used"])


def adaptive_claims(results: Results) -> Iterator[Claim]:
    """One for each row of MI-OL on a model that was trained with mixup."""
    adaptive = results.get("adaptive")
    if not adaptive:
        return
    models = {row["title"]: row["model"] for row in results["rows"] if row["defense"] == CLAIMED}
    for found in adaptive_verdicts(adaptive):
        model = models.get(found.title)
        objective = None if model is None else selection.objective_of(results, model)
        if not labels.uses_mixup(objective):
            continue
        verdict = verdict_of([found.change], min_effect=MARGIN)
        if not _is_reliable(verdict, found):
            verdict = "undecided"
        doubt = " Checks of the attacks failed." if found.failures else ""
        yield Claim(
            "adaptive-robustness",
            f"On models trained with {labels.objective_title(str(objective))}, MI-OL improves "
            f"robustness to adaptive attacks [{found.title}].",
            "Section 4.4, Figure 4",
            verdict,
            f"{found.title} {found.effect}. {found.context}{doubt}",
            (found.change,),
            (found.title,),
        )


def _is_reliable(verdict: Verdict, found: AdaptiveVerdict) -> bool:
    """Whether the attacks were strong enough for a verdict: a weak one overestimates robustness.

    A gain is reliable if the attacks on the row passed their checks; no gain, if those on the base
    did or reduced its accuracy to zero.
    """
    if verdict == "holds":
        return bool(found.row["checks"]) and not failed_checks(found.row)
    return not failed_checks(found.base) or found.base["worst"]["robust"]["accuracy"] == 0
