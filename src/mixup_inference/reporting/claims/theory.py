"""The claims that the figures decide: linearity, detection, the robustness improving condition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mixup_inference.evaluation.detection import middle
from mixup_inference.metrics.accuracy import Estimate, newcombe
from mixup_inference.reporting.adaptive import failures, verdicts
from mixup_inference.reporting.claims.base import (
    MARGIN,
    TRAINED,
    Claim,
    Verdict,
    objective_of,
    verdict_of,
)

Row = dict[str, Any]


def claims_of_figures(results: dict[str, Any]) -> Iterable[Claim | None]:
    """Linearity, detection, and the two mechanisms of the theory."""
    figures = results.get("figures") or {}
    by_objective = {objective_of(results, name): name for name in reversed(figures)}
    if "mixup" in by_objective and "erm" in by_objective:
        found = [figures[by_objective[o]]["linearity"] for o in ("mixup", "erm")]
        mixup, erm = (_around(f["overall"], f["pairs"]) for f in found)
        yield Claim(
            "Mixup training makes a model more linear between clean samples.",
            "Section 3.1",
            verdict_of([newcombe(erm, mixup)]),
            f"mean deviation {_told(mixup)} with mixup, {_told(erm)} without, over "
            f"{found[0]['pairs']} pairs of test images; one training each.",
        )
    for objective in TRAINED:
        if (name := by_objective.get(objective)) is not None:
            scores = figures[name]["detection"]["scores"]
            yield _detection(f"MI-PL detects better than low confidence, on {name}.", scores)
            yield _detection(f"MI-PL detects better than MI-OL, on {name}.", scores, "MI-OL")
            yield from _theory(figures[name]["theory"], name)


def _detection(claim: str, scores: list[Row], rival: str = "low confidence") -> Claim | None:
    """MI-PL against another score, both at the ratio nearest 0.5; intervals must not overlap."""
    ours = _nearest([s for s in scores if s["score"] == "MI-PL"])
    theirs = _nearest([s for s in scores if s["score"] == rival])
    pairs = [(s, t) for s in ours for t in theirs if s["attack"] == t["attack"]]
    if not pairs:
        return None
    gains = [(s["auc"] - t["auc"], s["low"] - t["high"], s["high"] - t["low"]) for s, t in pairs]
    told = [
        f"{s['attack']}: AUC {s['auc']:.3f} [{s['low']:.3f}, {s['high']:.3f}] against "
        f"{t['auc']:.3f} [{t['low']:.3f}, {t['high']:.3f}]"
        for s, t in pairs
    ]
    evidence = f"At lambda {pairs[0][0]['lam']:g}, {'; '.join(told)}."
    return Claim(claim, "Figure 3a", verdict_of(gains), evidence)


def _theory(entries: list[Row], model: str) -> Iterable[Claim]:
    """The robustness improving condition and the two mechanisms, at the ratio nearest 0.5."""
    nearest = _nearest([e for e in entries if e["kind"] == "mi-ol"])
    if not nearest:
        return
    where = f"MI-OL, lambda {nearest[0]['lam']:g}"
    yield Claim(
        f"Oblivious PGD satisfies the robustness improving condition for MI-OL, on {model}.",
        "Eq. 10, Figure 2",
        verdict_of(interval for e in nearest for interval in _condition_intervals(e)),
        "; ".join(
            f"{e['attack']}: F_y changes by {e['adversarial']['delta_y']['mean']:+.3f}, F_yhat by "
            f"{e['adversarial']['delta_y_hat']['mean']:+.3f} on average, and for "
            f"{e['ric']['points']} of {e['ric']['total']} points both go the right way"
            for e in nearest
        )
        + f" ({where}).",
    )
    for part, words in (
        ("input_transfer", "Input transfer"),
        ("perturbation_shrinkage", "Perturbation shrinkage"),
    ):
        found = [_around(e["y_hat"][part], e["counts"]["used"]) for e in nearest]
        yield Claim(
            f"{words} lowers the adversarial component, on {model}.",
            "Eq. 13",
            verdict_of(found),
            "; ".join(
                f"{e['attack']}: {_told(interval)} over {e['counts']['used']} points"
                for e, interval in zip(nearest, found, strict=True)
            )
            + f" ({where}, the y_hat component).",
        )


def _condition_intervals(entry: Row) -> list[Estimate]:
    """F_y must rise and F_yhat must fall: both as something that must be positive."""
    seen, count = entry["adversarial"], entry["counts"]["used"]
    rise, fall = _around(seen["delta_y"], count), _around(seen["delta_y_hat"], count)
    return [rise, (-fall[0], -fall[2], -fall[1])]


def _around(estimate: Row, count: int) -> Estimate:
    """A mean of ``count`` values and its 95% interval by Student's t."""
    from scipy.stats import t  # noqa: PLC0415 (slow to import)

    mean, arm = estimate["mean"], float(t.ppf(0.975, max(count - 1, 1))) * estimate["se"]
    return mean, mean - arm, mean + arm


def _told(interval: Estimate) -> str:
    return f"{interval[0]:.3f} ± {interval[2] - interval[0]:.3f}"


def _nearest(entries: list[Row]) -> list[Row]:
    """Those with the ratio nearest to 0.5; entries without one are all kept."""
    ratios = {e["lam"] for e in entries if e["lam"] is not None}
    return [e for e in entries if e["lam"] == middle(ratios)] if ratios else entries


def claims_of_adaptive(results: dict[str, Any]) -> Iterable[Claim]:
    """One for each row of MI-OL on a model that was trained with mixup."""
    adaptive = results.get("adaptive")
    if not adaptive:
        return
    models = {row["title"]: row["model"] for row in results["rows"] if row["defense"] == "mi-ol"}
    rows = {row["title"]: row for row in adaptive["rows"]}
    for found in verdicts(adaptive):
        objective = objective_of(results, models[found.title]) if found.title in models else None
        if objective not in TRAINED:
            continue
        row = rows[found.title]
        change = row["versus_base"]
        gain = (change["difference"], change["low"], change["high"])
        verdict = verdict_of([gain], worth=MARGIN)
        if not _to_be_trusted(verdict, row, rows[row["base"]]):
            verdict = "undecided"
        doubt = " Checks of the attacks failed." if found.broken else ""
        yield Claim(
            f"MI-OL makes {TRAINED[objective]} more robust to attackers who know it "
            f"[{found.title}].",
            "Section 4.4, Figure 4",
            verdict,
            f"{found.title} {found.change}. {found.beside}{doubt}",
        )


def _to_be_trusted(verdict: Verdict, row: dict[str, Any], base: dict[str, Any]) -> bool:
    """An attack that is too weak makes a row look better than it is.

    So a gain is believed if the row's attacks passed their checks; and that there is none, if those
    of the base did, or left nothing of it.
    """
    if verdict == "holds":
        return bool(row["checks"]) and not failures(row)
    return not failures(base) or base["worst"]["robust"]["accuracy"] == 0
