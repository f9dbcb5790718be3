"""Claims about accuracy: MI-OL, its baselines, MI-Combined, and how the model was trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mixup_inference.metrics.accuracy import correlation, difference, from_bits, newcombe
from mixup_inference.reporting.claims.base import (
    CLAIMED,
    MARGIN,
    Claim,
    Verdict,
    differing_in,
    models_by_objective,
    objective_of,
    verdict_of,
)
from mixup_inference.reporting.formatting import format_change
from mixup_inference.reporting.labels import (
    defense_group,
    objective_title,
    uses_mixup,
    without_mixup,
)
from mixup_inference.reporting.schema import Cell, Results, Row
from mixup_inference.reporting.summary import undefended_row
from mixup_inference.reporting.tables import strongest_attacks

#: The lambda of MI-OL where a row does not set one.
DEFAULT_LAM = 0.5

#: A defended row and the undefended row of the same model.
Pair = tuple[Row, Row]


def table_claims(results: Results) -> Iterator[Claim]:
    """MI-OL against its undefended model and against the baselines, and MI-Combined."""
    if not strongest_attacks(results["columns"]):
        return
    objectives = models_by_objective(results, (row["model"] for row in results["rows"]))
    mixed = list(filter(uses_mixup, objectives))
    for objective in mixed:
        on = f"On models trained with {objective_title(objective)}, MI-OL"
        defended = _rows(results, objective, CLAIMED)
        for row in defended:
            which = f" [{row['title']}]" if len(defended) > 1 else ""
            same = [other for other in results["rows"] if other["model"] == row["model"]]
            bare = [other for other in same if defense_group(other["defense"]) == "none"]
            rivals = [
                other
                for other in same
                if defense_group(other["defense"]) == "baseline" and other["group"] == row["group"]
            ]
            if bare:
                statement = f"{on} improves robustness to oblivious attacks{which}."
                yield _better(results, "oblivious-robustness", statement, row, bare)
            if rivals:
                statement = f"{on} outperforms the other inference-time defences{which}."
                yield _better(results, "beats-baselines", statement, row, rivals)
    yield from _combined(results, mixed)


def _better(results: Results, id_: str, statement: str, row: Row, others: list[Row]) -> Claim:
    """Whether a row beats all of its rivals under the strongest attacks."""
    gains = {
        column: [(difference(row["cells"][column], r["cells"][column]), r["title"]) for r in others]
        for column in strongest_attacks(results["columns"])
    }
    estimates = tuple(gain for some in gains.values() for gain, _ in some)
    verdict = verdict_of(estimates, min_effect=MARGIN)
    end = 2 if verdict == "does not hold" else 1  # of the interval that decides
    found = []
    for column, some in gains.items():
        gain, rival = min(some, key=lambda pair: pair[0][end])
        found.append(f"{column}: {format_change(gain)} compared with {rival}")
    rivals = ", ".join(other["title"] for other in others)
    compared = f" (the strongest of {rivals})" if len(others) > 1 else ""
    evidence = f"{row['title']}, {'; '.join(found)}{compared}."
    source = "Section 4.3, Tables 2 and 3"
    return Claim(id_, statement, source, verdict, evidence, estimates, (row["title"],))


def _combined(results: Results, objectives: list[str]) -> Iterator[Claim]:
    """MI-Combined against MI-OL, on the first objective that has both."""
    for objective in objectives:
        found = [_rows(results, objective, kind) for kind in ("mi-combined", CLAIMED)]
        if not all(found):
            continue
        combined, other = (rows[0] for rows in found)
        columns = ["clean", *strongest_attacks(results["columns"])]
        gains = tuple(difference(combined["cells"][c], other["cells"][c]) for c in columns)
        shown = [f"{c}: {format_change(g)}" for c, g in zip(columns, gains, strict=True)]
        verdict: Verdict = "undecided"
        if all(low > -MARGIN for _, low, _ in gains):
            verdict = "holds"
        elif any(high < -MARGIN for _, _, high in gains):
            verdict = "does not hold"
        yield Claim(
            "combined-as-good",
            f"MI-Combined is as accurate as MI-OL, clean and under attack, to within "
            f"{100 * MARGIN:g} points.",
            "Tables 2 and 3",
            verdict,
            f"{combined['title']} compared with {other['title']}, {'; '.join(shown)}.",
            gains,
            (combined["title"], other["title"]),
        )
        return


def _rows(results: Results, objective: str, defense: str) -> list[Row]:
    """The rows of a defence on models that were trained with an objective."""
    return [
        row
        for row in results["rows"]
        if row["defense"] == defense and objective_of(results, row["model"]) == objective
    ]


def training_claims(results: Results) -> Iterator[Claim]:
    """Training with mixup against without, longer training, and training at MI-OL's lambda."""
    if not strongest_attacks(results["columns"]):
        return
    models = models_by_objective(results, (row["model"] for row in results["rows"]))
    for mixed in filter(uses_mixup, models):
        for plain in without_mixup(mixed):
            if plain in models:
                yield from _ablation(results, models[mixed], models[plain])
    for lengths in differing_in(results, "epochs"):
        long, short = (pick(lengths, key=lengths.__getitem__) for pick in (max, min))
        objective = objective_of(results, long)
        if uses_mixup(objective) and (pairs := _alike(results, long, short)):
            yield _gains_more(
                results,
                "longer-training",
                f"Longer training increases the gain of MI-OL ({objective_title(str(objective))}).",
                "Appendix B.1",
                {f"{lengths[long]} epochs": pairs[0], f"{lengths[short]} epochs": pairs[1]},
            )
    for ratios in differing_in(results, "lam"):
        usual = next((model for model, lam in ratios.items() if lam is None), None)
        for model, lam in ratios.items():
            if lam is None or usual is None or not uses_mixup(objective_of(results, model)):
                continue
            if pairs := _alike(results, model, usual, lam=lam):
                yield _gains_more(
                    results,
                    "matched-lambda",
                    f"Training with the lambda of MI-OL, {lam:g}, increases its gain.",
                    "Appendix B.1",
                    {"the same lambda": pairs[0], "random lambda": pairs[1]},
                )


def _ablation(results: Results, mixed: str, plain: str) -> Iterable[Claim]:
    """Whether MI-OL gains more on the model that was trained with mixup.

    With the settings that come first and, if these differ, with equal ones too: the paper's
    ablations use another lambda, which by itself changes the gain.
    """
    names = [objective_title(str(objective_of(results, model))) for model in (mixed, plain)]
    found = [_pairs(results, model) for model in (mixed, plain)]
    if not all(found):
        return
    id_, source = "mixup-training", "Table 2, ablation"
    statement = f"The gain comes from mixup training: MI-OL gains more on {names[0]} than on "
    statement += names[1]
    firsts = [pairs[0] for pairs in found]
    ratios = [_lam(row) for row, _ in firsts]
    differ = ratios[0] != ratios[1]
    which = f" [lambda {ratios[0]} and {ratios[1]}]" if differ else ""
    pairs = dict(zip(names, firsts, strict=True))
    yield _gains_more(results, id_, f"{statement}{which}.", source, pairs)
    if differ and (alike := _alike(results, mixed, plain)):
        pairs = dict(zip(names, alike, strict=True))
        which = f" [lambda {_lam(alike[0][0])}]"
        yield _gains_more(results, id_, f"{statement}{which}.", source, pairs)


def _lam(row: Row) -> Any:
    """The mixing ratio of a row of MI-OL."""
    return row.get("settings", {}).get("lam", DEFAULT_LAM)


def _pairs(results: Results, model: str) -> list[Pair]:
    """A model's MI-OL rows, each with the undefended row."""
    bare = undefended_row(results, model)
    same = (row for row in results["rows"] if row["model"] == model)
    return [(row, bare) for row in same if row["defense"] == CLAIMED and bare]


def _alike(
    results: Results, one: str, two: str, *, lam: float | None = None
) -> tuple[Pair, Pair] | None:
    """Pairs of two models with equal settings of MI-OL, at this lambda if it is given."""
    for first in _pairs(results, one):
        for second in _pairs(results, two):
            same = first[0].get("settings", {}) == second[0].get("settings", {})
            if same and lam in (None, _lam(first[0])):
                return first, second
    return None


def _gains_more(
    results: Results, id_: str, statement: str, source: str, pairs: dict[str, Pair]
) -> Claim:
    """Whether MI-OL gains more in the first of two pairs than in the second."""
    found, gaps = [], []
    for column in strongest_attacks(results["columns"]):
        cells = [(row["cells"][column], bare["cells"][column]) for row, bare in pairs.values()]
        more, less = (difference(*pair) for pair in cells)
        gaps.append(newcombe(more, less, _correlation_of_gains(cells)))
        both = [f"{n} {format_change(g)}" for n, g in zip(pairs, (more, less), strict=True)]
        found.append(f"{column}: {', '.join(both)}, difference {format_change(gaps[-1])}")
    evidence = f"{'; '.join(found)}; one training run each."
    about = tuple(row["title"] for row, _ in pairs.values())
    verdict = verdict_of(gaps, min_effect=MARGIN)
    return Claim(id_, statement, source, verdict, evidence, tuple(gaps), about)


def _correlation_of_gains(pairs: list[tuple[Cell, Cell]]) -> float:
    """The correlation over points of the gains of two pairs; 0 if the points are not known."""
    totals = {cell["total"] if "right" in cell else None for pair in pairs for cell in pair}
    if None in totals or len(totals) > 1:
        return 0.0
    right = [[from_bits(cell["right"], cell["total"]).double() for cell in p] for p in pairs]
    return correlation(*(defended - bare for defended, bare in right))
