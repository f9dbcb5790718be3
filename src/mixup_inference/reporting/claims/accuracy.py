"""The claims that the table decides: MI-OL against its model, against other defences, combined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mixup_inference.defenses import group_of
from mixup_inference.metrics.accuracy import correlation, difference, from_bits, newcombe
from mixup_inference.reporting.claims.base import (
    MARGIN,
    TRAINED,
    Claim,
    Verdict,
    differing_in,
    objective_of,
    verdict_of,
)
from mixup_inference.reporting.tables import hardest, in_points

Row = dict[str, Any]


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
                [
                    other
                    for other in same
                    if group_of(other["defense"]) == "baseline" and other["group"] == row["group"]
                ],
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


#: What a row of MI-OL has that does not say.
USUAL_LAM = 0.5


def claims_of_trainings(results: dict[str, Any]) -> Iterable[Claim | None]:
    """With mixup and without, after a longer training, and after a matched one."""
    models = {objective_of(results, row["model"]): row["model"] for row in results["rows"][::-1]}
    for plain, mixed in (("erm", "mixup"), ("at", "iat")):
        if plain in models and mixed in models:
            yield from _ablation(results, models[mixed], models[plain])
    for lengths in differing_in(results, "epochs"):
        long, short = (pick(lengths, key=lengths.__getitem__) for pick in (max, min))
        if objective_of(results, long) in TRAINED and (rows := _alike(results, long, short)):
            yield _gains_more(
                results,
                f"Longer training makes MI-OL gain more ({objective_of(results, long)}).",
                "Appendix B.1",
                {f"{lengths[m]} epochs": row for m, row in zip((long, short), rows, strict=True)},
            )
    for ratios in differing_in(results, "lam"):
        usual = next((model for model, lam in ratios.items() if lam is None), None)
        for model, lam in ratios.items():
            if lam is None or usual is None or objective_of(results, model) not in TRAINED:
                continue
            if rows := _alike(results, model, usual, lam=lam):
                yield _gains_more(
                    results,
                    f"MI-OL gains more if training mixes with the same lambda, {lam:g}.",
                    "Appendix B.1",
                    {"the same lambda": rows[0], "lambda at random": rows[1]},
                )


def _ablation(results: dict[str, Any], mixed: str, plain: str) -> Iterable[Claim | None]:
    """Whether MI-OL gains more on the model that was trained with mixup.

    With the settings that come first and, if these differ, with the same ones too: the paper's
    ablations have other lambdas than what they are compared with, which alone makes gains differ.
    """
    names = [str(objective_of(results, model)) for model in (mixed, plain)]
    found = [_pairs(results, model) for model in (mixed, plain)]
    if not all(found):
        return
    claim = f"The gain comes from mixup training: MI-OL gains more on {names[0]} than on {names[1]}"
    firsts = [pairs[0] for pairs in found]
    ratios = [_lam(row) for row, _ in firsts]
    differ = ratios[0] != ratios[1]
    told = f" [lambda {ratios[0]} and {ratios[1]}]" if differ else ""
    rows = dict(zip(names, firsts, strict=True))
    yield _gains_more(results, f"{claim}{told}.", "Table 2, ablation", rows)
    if differ and (alike := _alike(results, mixed, plain)):
        rows = dict(zip(names, alike, strict=True))
        told = f" [lambda {_lam(alike[0][0])}]"
        yield _gains_more(results, f"{claim}{told}.", "Table 2, ablation", rows)


def _lam(row: Row) -> Any:
    """The mixing ratio of a row of MI-OL."""
    return (row.get("settings") or {}).get("lam", USUAL_LAM)


def _pairs(results: dict[str, Any], model: str | None) -> list[tuple[Row, Row]]:
    """A model's MI-OL rows, each beside the one without defence."""
    same = [row for row in results["rows"] if row["model"] == model]
    bare = [row for row in same if row["defense"] == "none"]
    return [(row, bare[0]) for row in same if row["defense"] == "mi-ol" and bare]


def _alike(
    results: dict[str, Any], one: str, two: str, *, lam: float | None = None
) -> tuple[tuple[Row, Row], tuple[Row, Row]] | None:
    """The same for two models with the same settings of MI-OL, of this lambda if it is given."""
    for first in _pairs(results, one):
        for second in _pairs(results, two):
            settings = [pair[0].get("settings") or {} for pair in (first, second)]
            if settings[0] == settings[1] and lam in (None, _lam(first[0])):
                return first, second
    return None


def _gains_more(
    results: dict[str, Any], claim: str, source: str, rows: dict[str, tuple[Row, Row]]
) -> Claim | None:
    """Whether MI-OL gains more in the first of two pairs than in the second."""
    told, gaps = [], []
    for column in hardest(results["columns"]):
        pairs = [[row["cells"][column] for row in pair] for pair in rows.values()]
        more, less = (difference(*pair) for pair in pairs)
        gaps.append(newcombe(more, less, _together(pairs)))
        words = [f"{n} {in_points(g)}" for n, g in zip(rows, (more, less), strict=True)]
        told.append(f"{column}: {', '.join(words)}, the difference {in_points(gaps[-1])}")
    if not gaps:
        return None
    evidence = f"{'; '.join(told)}; one training each."
    return Claim(claim, source, verdict_of(gaps, worth=MARGIN), evidence)


def _together(pairs: list[list[Row]]) -> float:
    """How much the gains of two pairs of cells go together, point by point."""
    if any(
        "right" not in cell or cell["total"] != pairs[0][0]["total"] for p in pairs for cell in p
    ):
        return 0.0
    right = [[from_bits(cell["right"], cell["total"]).double() for cell in p] for p in pairs]
    return correlation(*(defended - bare for defended, bare in right))
