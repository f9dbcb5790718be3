"""The claims that the table decides: MI-OL against its model, against other defences, combined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mixup_inference.evaluation.accuracy import difference
from mixup_inference.reporting.claims.claim import MARGIN, TRAINED, Claim, Verdict, verdict_of
from mixup_inference.reporting.tables import hardest, in_points
from mixup_inference.reporting.trainings import objective_of

Row = dict[str, Any]

BASELINES = ("gaussian", "rotation", "resize-pad", "crop-resize")


def claims_of_table(results: dict[str, Any]) -> Iterable[Claim | None]:
    """MI-OL on each model that was trained with mixup, and MI-Combined beside it."""
    for objective, title in TRAINED.items():
        defended = _rows(results, objective, "mi-ol")
        for row in defended:
            which = f" [{row['title']}]" if len(defended) > 1 else ""
            same = [other for other in results["rows"] if other["model"] == row["model"]]
            yield _better(
                results,
                f"MI-OL makes {title} more robust to oblivious attacks{which}.",
                row,
                [other for other in same if other["defense"] == "none"],
            )
            yield _better(
                results,
                f"On {title}, MI-OL is better than the other defences at inference time{which}.",
                row,
                [r for r in same if r["defense"] in BASELINES and r["group"] == row["group"]],
            )
    yield _combined(results)


def _better(results: dict[str, Any], claim: str, row: Row, others: list[Row]) -> Claim | None:
    """Whether MI-OL beats all of its rivals under the hardest attacks."""
    columns = hardest(results["columns"])
    if not others or not columns:
        return None
    gains = {
        column: [(difference(row["cells"][column], r["cells"][column]), r["title"]) for r in others]
        for column in columns
    }
    verdict = verdict_of((gain for some in gains.values() for gain, _ in some), worth=MARGIN)
    end = 2 if verdict == "does not hold" else 1  # of the interval that decides
    told = []
    for column, some in gains.items():
        gain, rival = min(some, key=lambda pair: pair[0][end])
        told.append(f"{column}: {in_points(gain)} against {rival}")
    rivals = ", ".join(other["title"] for other in others)
    compared = f" (the hardest of {rivals})" if len(others) > 1 else ""
    evidence = f"{row['title']}, {'; '.join(told)}{compared}."
    return Claim(claim, "Section 4.3, Tables 2 and 3", verdict, evidence)


def _combined(results: dict[str, Any]) -> Claim | None:
    found = [_rows(results, "mixup", kind) for kind in ("mi-combined", "mi-ol")]
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


def _rows(results: dict[str, Any], objective: str, defense: str) -> list[Row]:
    """The rows of a defence on models that were trained with an objective."""
    return [
        row
        for row in results["rows"]
        if row["defense"] == defense and objective_of(results, row["model"]) == objective
    ]
