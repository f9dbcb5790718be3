"""The paper's claims, and what a run says of each: holds, does not hold, undecided.

Everything follows from results.json. A verdict is given only where the 95% intervals agree on it;
the table's are Newcombe's, of differences of two accuracies on the same points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mixup_inference.evaluation.accuracy import Estimate, difference, newcombe
from mixup_inference.evaluation.detecting import middle
from mixup_inference.reporting.adaptive import verdicts
from mixup_inference.reporting.tables import hardest, in_points, row_of
from mixup_inference.reporting.trainings import differing_in, objective_of

Verdict = Literal["holds", "does not hold", "undecided"]
Row = dict[str, Any]

TRAINED = {"mixup": "a mixup-trained model", "iat": "interpolated AT"}
BASELINES = ("gaussian", "rotation", "resize-pad", "crop-resize")
#: As good as means: not worse by this much; and a gain below it is none to speak of.
MARGIN = 0.03


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, and what this run says about it."""

    claim: str
    source: str
    verdict: Verdict
    evidence: str


def claims(results: dict[str, Any]) -> list[Claim]:
    """The paper's claims that this run has something to say about.

    They are about objectives: a model that was brought along and does not say how it was trained
    is not judged.
    """
    made = [
        *_claims_of_table(results),
        *_claims_of_trainings(results),
        *_claims_of_figures(results),
        *_claims_of_adaptive(results),
    ]
    return [claim for claim in made if claim is not None]


def _claims_of_table(results: dict[str, Any]) -> Iterable[Claim | None]:
    for objective, title in TRAINED.items():
        defended = _trained_rows(results, objective, "mi-ol")
        for row in defended:
            bare = _trained_rows(results, objective, "none", model=row["model"])
            which = f" ({row['title']})" if len(defended) > 1 else ""
            yield _compare(
                results, f"MI-OL makes {title} more robust to oblivious attacks{which}.", row, bare
            )
            yield _compare(
                results,
                f"On {title}, MI-OL is better than the other defences at inference time{which}.",
                row,
                [
                    rival
                    for kind in BASELINES
                    for rival in _trained_rows(results, objective, kind, model=row["model"])
                    if rival["group"] == row["group"]
                ],
            )
    yield _combined(results)


def _compare(results: dict[str, Any], claim: str, row: Row, others: list[Row]) -> Claim | None:
    """Whether MI-OL beats all of its rivals under the hardest attacks."""
    columns = hardest(results["columns"])
    if not others or not columns:
        return None
    gains, told = [], []
    for column in columns:
        rival = max(others, key=lambda r: r["cells"][column]["accuracy"])
        gains.append(difference(row["cells"][column], rival["cells"][column]))
        told.append(f"{column}: {in_points(gains[-1])} against {rival['title']}")
    compared = "" if len(others) == 1 else f" (the best of {', '.join(r['title'] for r in others)})"
    evidence = f"{row['title']}, {'; '.join(told)}{compared}."
    return Claim(claim, "Section 4.3, Tables 2 and 3", _verdict(gains), evidence)


def _claims_of_trainings(results: dict[str, Any]) -> Iterable[Claim | None]:
    """On which model MI-OL gains more: with mixup, after a longer or a matched training."""
    models = {objective_of(results, row["model"]): row["model"] for row in results["rows"][::-1]}
    for plain, with_mixup in (("erm", "mixup"), ("at", "iat")):
        if plain in models and with_mixup in models:
            yield _gains_more(
                results,
                "The gain comes from mixup training: MI-OL gains more on "
                f"{with_mixup} than on {plain}.",
                "Table 2, ablation",
                {with_mixup: models[with_mixup], plain: models[plain]},
            )
    for lengths in differing_in(results, "epochs"):
        long, short = max(lengths, key=lengths.__getitem__), min(lengths, key=lengths.__getitem__)
        if objective_of(results, long) in TRAINED:
            yield _gains_more(
                results,
                "Longer mixup training makes MI-OL gain more.",
                "Appendix B.1",
                {f"{lengths[model]} epochs": model for model in (long, short)},
            )
    for ratios in differing_in(results, "lam"):
        usual = next((model for model, lam in ratios.items() if lam is None), None)
        for model, lam in ratios.items():
            row = row_of(results, model, "mi-ol")
            if usual is not None and row is not None and row["settings"].get("lam") == lam:
                yield _gains_more(
                    results,
                    "MI-OL gains more if training mixes with the same lambda.",
                    "Appendix B.1",
                    {f"lambda {lam:g} in training": model, "lambda at random": usual},
                )


def _gains_more(
    results: dict[str, Any], claim: str, source: str, models: dict[str, str]
) -> Claim | None:
    """Whether MI-OL gains more on the first of two models than on the second, given by name."""
    rows = [
        (with_mi["cells"], bare["cells"])
        for model in models.values()
        if (with_mi := row_of(results, model, "mi-ol")) and (bare := row_of(results, model, "none"))
    ]
    if len(rows) < len(models):
        return None
    told, gaps = [], []
    for column in hardest(results["columns"]):
        more, less = (difference(defended[column], bare[column]) for defended, bare in rows)
        gaps.append(newcombe(more, less))
        words = [f"{n} {in_points(g)}" for n, g in zip(models, (more, less), strict=True)]
        told.append(f"{column}: {', '.join(words)}")
    return Claim(claim, source, _verdict(gaps), "; ".join(told) + ".") if gaps else None


def _combined(results: dict[str, Any]) -> Claim | None:
    found = [_trained_rows(results, "mixup", kind) for kind in ("mi-combined", "mi-ol")]
    if not all(found) or not hardest(results["columns"]):
        return None
    combined, other = (rows[0] for rows in found)
    columns = ["clean", *hardest(results["columns"])]
    gains = [difference(combined["cells"][c], other["cells"][c]) for c in columns]
    told = [f"{c}: {in_points(g)}" for c, g in zip(columns, gains, strict=True)]
    verdict: Verdict = "undecided"
    if all(low > -MARGIN for _, low, _ in gains):
        verdict = "holds"
    elif any(high < -MARGIN for _, _, high in gains):
        verdict = "does not hold"
    return Claim(
        f"MI-Combined is as good as MI-OL, clean and attacked (to within {100 * MARGIN:g} points).",
        "Tables 2 and 3",
        verdict,
        f"{combined['title']} against {other['title']}, {'; '.join(told)}.",
    )


def _claims_of_adaptive(results: dict[str, Any]) -> Iterable[Claim]:
    """Whether MI-OL adds anything against attackers who know it."""
    adaptive = results.get("adaptive")
    models = {row["title"]: row["model"] for row in results["rows"] if row["defense"] == "mi-ol"}
    for found in verdicts(adaptive) if adaptive else ():
        model = models.get(found.title)
        title = TRAINED.get(objective_of(results, model) or "") if model is not None else None
        if title is None:
            continue
        verdict: Verdict = "undecided"
        if found.conclusion == "really more" and not found.broken:
            verdict = "holds"
        elif found.most < MARGIN:  # what a failed check would hide is less robustness, not more
            verdict = "does not hold"
        doubt = " Checks of the attacks failed." if found.broken else ""
        yield Claim(
            f"MI-OL makes {title} more robust to attackers who know it.",
            "Section 4.4, Figure 4",
            verdict,
            f"{found.title} {found.change}. {found.beside}{doubt}",
        )


def _claims_of_figures(results: dict[str, Any]) -> Iterable[Claim | None]:
    figures = results.get("figures", {})
    by_objective = {objective_of(results, name): name for name in reversed(figures)}
    if "mixup" in by_objective and "erm" in by_objective:
        found = [figures[by_objective[o]]["linearity"] for o in ("mixup", "erm")]
        mixup, erm = (_around(f["overall"], f["pairs"]) for f in found)
        arm = ((mixup[2] - mixup[0]) ** 2 + (erm[2] - erm[0]) ** 2) ** 0.5
        gap = erm[0] - mixup[0]
        yield Claim(
            "Mixup training makes a model more linear between clean samples.",
            "Section 3.1",
            _verdict([(gap, gap - arm, gap + arm)]),
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
    return Claim(claim, "Figure 3a", _verdict(gains), evidence)


def _theory(entries: list[Row], model: str) -> Iterable[Claim]:
    """The robustness improving condition and the two mechanisms, at the ratio nearest 0.5."""
    nearest = _nearest([e for e in entries if e["kind"] == "mi-ol"])
    if not nearest:
        return
    where = f"MI-OL, lambda {nearest[0]['lam']:g}"
    yield Claim(
        f"Oblivious PGD satisfies the robustness improving condition for MI-OL, on {model}.",
        "Eq. 10, Figure 2",
        _verdict(interval for e in nearest for interval in _condition_intervals(e)),
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
            _verdict(found),
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


def _verdict(differences: Iterable[Estimate]) -> Verdict:
    """Holds if all are surely positive, does not if one is surely negative."""
    given = list(differences)
    if given and all(low > 0 for _, low, _ in given):
        return "holds"
    if any(high < 0 for _, _, high in given):
        return "does not hold"
    return "undecided"


def _trained_rows(
    results: dict[str, Any], objective: str, defense: str, *, model: str | None = None
) -> list[Row]:
    """The rows of a defence on models, or one, that were trained with an objective."""
    return [
        row
        for row in results["rows"]
        if row["defense"] == defense
        and objective_of(results, row["model"]) == objective
        and model in (None, row["model"])
    ]
