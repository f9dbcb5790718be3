"""Claims about accuracy: MI-OL, its baselines, MI-Combined, and how the model was trained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from mixup_inference.defenses import group_of
from mixup_inference.metrics.accuracy import correlation, difference, from_bits, newcombe
from mixup_inference.reporting import labels, selection
from mixup_inference.reporting.claims.base import CLAIMED, MARGIN, Claim, verdict_of
from mixup_inference.reporting.formatting import format_change
from mixup_inference.reporting.schema import Cell, Results, Row
from mixup_inference.reporting.selection import gain, strongest_attacks

#: The lambda of MI-OL where a row does not set one.
DEFAULT_LAM = 0.5

#: What MI-OL is compared with, by the group of the defence.
RIVALS = {
    "published": "the baselines of the published code",
    "baseline": "the other inference-time defences",
    "control": "low-pass filters",
}

#: A defended row and the undefended row of the same model.
Pair = tuple[Row, Row]


def accuracy_claims(results: Results) -> Iterator[Claim]:
    """All of them, if the run has an attack."""
    if not strongest_attacks(results["columns"]):
        return
    models = selection.models_by_objective(results, (row["model"] for row in results["rows"]))
    mixed = list(filter(labels.uses_mixup, models))
    for objective in mixed:
        yield from _defended(results, objective)
    yield from _combined(results, mixed)
    for objective in mixed:
        for plain in filter(models.__contains__, labels.without_mixup(objective)):
            yield from _ablation(results, {name: models[name] for name in (objective, plain)})
    yield from _longer_training(results)
    yield from _matched_lambda(results)


def _defended(results: Results, objective: str) -> Iterator[Claim]:
    """MI-OL against its undefended model and against the baselines."""
    on = f"On models trained with {labels.objective_title(objective)}, MI-OL"
    defended = _rows(results, objective, CLAIMED)
    for row in defended:
        which = f" [{row['title']}]" if len(defended) > 1 else ""
        same = [other for other in results["rows"] if other["model"] == row["model"]]
        if bare := [other for other in same if group_of(other["defense"]) == "none"]:
            statement = f"{on} improves robustness to oblivious attacks{which}."
            yield _better(results, "oblivious-robustness", statement, row, bare)
        alike = [other for other in same if other["group"] == row["group"]]
        for group, name in RIVALS.items():
            if rivals := [other for other in alike if group_of(other["defense"]) == group]:
                statement = f"{on} outperforms {name}{which}."
                yield _better(results, f"beats-{group}", statement, row, rivals)


def _better(results: Results, id_: str, statement: str, row: Row, others: list[Row]) -> Claim:
    """Whether a row beats all of its rivals under the strongest attacks."""
    gains = {
        column: [(gain(row, other, column), other["title"]) for other in others]
        for column in strongest_attacks(results["columns"])
    }
    estimates = tuple(change for some in gains.values() for change, _ in some)
    verdict = verdict_of(estimates, min_effect=MARGIN)
    end = 2 if verdict == "does not hold" else 1  # of the interval that decides
    found = []
    for column, some in gains.items():
        change, rival = min(some, key=lambda pair: pair[0][end])
        found.append(f"{column}: {format_change(change)} compared with {rival}")
    rivals = ", ".join(other["title"] for other in others)
    compared = f" (the strongest of {rivals})" if len(others) > 1 else ""
    evidence = f"{row['title']}, {'; '.join(found)}{compared}."
    source = "Section 4.3, Tables 2 and 3"
    return Claim(id_, statement, source, verdict, evidence, estimates, (row["title"],))


def _combined(results: Results, objectives: list[str]) -> Iterator[Claim]:
    """MI-Combined against MI-OL, on the first objective that has both."""
    for objective in objectives:
        combined, others = (_rows(results, objective, kind) for kind in ("mi-combined", CLAIMED))
        if combined and others:
            yield _as_good(results, combined[0], others[0])
            return


def _as_good(results: Results, row: Row, other: Row) -> Claim:
    """Whether a row loses no more than a negligible difference to another."""
    columns = ["clean", *strongest_attacks(results["columns"])]
    gains = {column: gain(row, other, column) for column in columns}
    shown = [f"{column}: {format_change(change)}" for column, change in gains.items()]
    return Claim(
        "combined-as-good",
        f"MI-Combined is as accurate as MI-OL, clean and under attack, to within "
        f"{100 * MARGIN:g} points.",
        "Tables 2 and 3",
        verdict_of([(g + MARGIN, low + MARGIN, high + MARGIN) for g, low, high in gains.values()]),
        f"{row['title']} compared with {other['title']}, {'; '.join(shown)}.",
        tuple(gains.values()),
        (row["title"], other["title"]),
    )


def _rows(results: Results, objective: str, defense: str) -> list[Row]:
    """The rows of a defence on models that were trained with an objective."""
    rows = [row for row in results["rows"] if row["defense"] == defense]
    return [row for row in rows if selection.objective_of(results, row["model"]) == objective]


def _ablation(results: Results, models: dict[str, str]) -> Iterator[Claim]:
    """Whether MI-OL gains more on the first model, trained with mixup, than on the second.

    With the settings that come first and, if these differ, with equal ones too: the paper's
    ablations use another lambda, which by itself changes the gain.
    """
    found = [_pairs(results, model) for model in models.values()]
    if not all(found):
        return
    names = [labels.objective_title(objective) for objective in models]
    statement = (
        f"The gain comes from mixup training: MI-OL gains more on {names[0]} than on {names[1]}"
    )
    firsts = [pairs[0] for pairs in found]
    lams = [_lam(row) for row, _ in firsts]
    compared = [(f" [lambda {lams[0]} and {lams[1]}]" if lams[0] != lams[1] else "", firsts)]
    if lams[0] != lams[1] and (alike := _alike(results, *models.values())):
        compared.append((f" [lambda {_lam(alike[0][0])}]", alike))
    for which, both in compared:
        pairs = dict(zip(names, both, strict=True))
        source = "Table 2, ablation"
        yield _gains_more(results, "mixup-training", f"{statement}{which}.", source, pairs)


def _longer_training(results: Results) -> Iterator[Claim]:
    """The longest against the shortest of trainings that differ in nothing else."""
    for lengths in selection.differing_in(results, "epochs"):
        both = [pick(lengths, key=lengths.__getitem__) for pick in (max, min)]
        objective = selection.objective_of(results, both[0])
        if labels.uses_mixup(objective) and (pairs := _alike(results, *both)):
            yield _gains_more(
                results,
                "longer-training",
                "Longer training increases the gain of MI-OL "
                f"({labels.objective_title(str(objective))}).",
                "Appendix B.1",
                {f"{lengths[model]} epochs": p for model, p in zip(both, pairs, strict=True)},
            )


def _matched_lambda(results: Results) -> Iterator[Claim]:
    """Training at MI-OL's lambda against training at random ones."""
    for lams in selection.differing_in(results, "lam"):
        usual = [model for model, lam in lams.items() if lam is None]
        fixed = {model: lam for model, lam in lams.items() if lam is not None and usual}
        for model, lam in fixed.items():
            mixed = labels.uses_mixup(selection.objective_of(results, model))
            if mixed and (pairs := _alike(results, model, usual[0], lam=lam)):
                yield _gains_more(
                    results,
                    "matched-lambda",
                    f"Training with the lambda of MI-OL, {lam:g}, increases its gain.",
                    "Appendix B.1",
                    {"the same lambda": pairs[0], "random lambda": pairs[1]},
                )


def _lam(row: Row) -> Any:
    """The mixing ratio of a row of MI-OL."""
    return row.get("settings", {}).get("lam", DEFAULT_LAM)


def _pairs(results: Results, model: str) -> list[Pair]:
    """A model's MI-OL rows, each with the undefended row."""
    wanted = (model, CLAIMED)
    pairs = selection.with_undefended(results)
    return [pair for pair in pairs if (pair[0]["model"], pair[0]["defense"]) == wanted]


def _alike(results: Results, one: str, two: str, *, lam: float | None = None) -> list[Pair]:
    """Pairs of two models with equal settings of MI-OL, at this lambda if it is given."""
    for pair in product(_pairs(results, one), _pairs(results, two)):
        first, second = (row.get("settings", {}) for row, _ in pair)
        if first == second and lam in (None, _lam(pair[0][0])):
            return list(pair)
    return []


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
