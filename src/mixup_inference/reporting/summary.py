"""What the numbers of a run say, in sentences: a summary, and the best cells of the table.

Everything follows from results.json. Differences of two accuracies carry Newcombe's 95% interval
for pairs, because both are measured on the same points. Nothing is called better unless its
interval says so.
"""

from __future__ import annotations

from typing import Any

from mixup_inference.defenses import group_of
from mixup_inference.metrics.accuracy import difference
from mixup_inference.reporting.adaptive import headline
from mixup_inference.reporting.tables import hardest, in_points, percent

#: Mean deviation from linearity (total variation): below the first a model is close to linear,
#: above the second far from it. A rule of thumb.
NEAR, FAR = 0.1, 0.2

Row = dict[str, Any]


def summary(results: dict[str, Any]) -> list[str]:
    """A few sentences: what was tested, does the defence help, at what cost, can it work."""
    pairs = [
        (row, base)
        for row in results["rows"]
        if group_of(row["defense"]) == "mixup" and (base := _row(results, row["model"], "none"))
    ]
    told = {row["title"]: _effect(results, row, base) for row, base in pairs}
    same = [title for title, effect in told.items() if effect == "makes no measurable difference"]
    known = headline(results.get("adaptive"))
    sentences = [_tested(results), *([known] if known else [])]
    sentences += [
        _helps(results, r, b, told[r["title"]]) for r, b in pairs if r["title"] not in same
    ]
    if same:
        sentences.append(f"No measurable difference under attack: {', '.join(same)}.")
    figures = results.get("figures") or {}
    sentences += [linear_enough(name, entry["linearity"]) for name, entry in figures.items()]
    return sentences


def _tested(results: dict[str, Any]) -> str:
    attack, points = results["spec"].get("attack"), results["points"]["test"]
    where = f"{points} test points of {results['spec']['data']['name']}"
    if attack is None:
        return f"Tested on {where}, without any attack."
    modes, steps = " and ".join(attack["modes"]), ", ".join(str(s) for s in attack["steps"])
    return (
        f"Tested on {where}: {modes} PGD with {steps} steps, made for the undefended model by an "
        "attacker who does not know of the defence."
    )


def _effect(results: dict[str, Any], row: Row, base: Row) -> str:
    """What a defended row does to its bare model under the hardest attacks, in words."""
    gains = [difference(row["cells"][c], base["cells"][c]) for c in hardest(results["columns"])]
    if not gains:
        return ""
    if all(low > 0 for _, low, _ in gains):
        return "helps"
    if all(high < 0 for _, _, high in gains):
        return "does harm"
    if any(low > 0 or high < 0 for _, low, high in gains):
        return "depends on the attack"
    return "makes no measurable difference"


def _helps(results: dict[str, Any], row: Row, base: Row, effect: str) -> str:
    """One defended row against its bare model."""
    clean = difference(row["cells"]["clean"], base["cells"]["clean"])
    cost = (
        f"on clean images {in_points(clean)}, {row['passes_per_image']:.0f} forward passes an image"
    )
    if not effect:
        return f"{row['title']}: {cost}."
    told = ", ".join(
        f"{column} {percent(row['cells'][column]['accuracy'])}% instead of "
        f"{percent(base['cells'][column]['accuracy'])}%"
        for column in hardest(results["columns"])
    )
    return f"{row['title']} {effect}: {told}. The cost: {cost}."


def linear_enough(name: str, linearity: dict[str, Any]) -> str:
    """Whether a model is linear enough for mixup inference, in a sentence."""
    value = linearity["overall"]["mean"]
    words = (
        "close to linear between clean samples, as mixup inference needs it"
        if value < NEAR
        else "only roughly linear between clean samples, so expect part of the theory's gain"
        if value < FAR
        else "far from linear between clean samples, so mixup inference has little to build on"
    )
    return f"{name} is {words} (mean deviation {value:.3f})."


def best(results: dict[str, Any]) -> dict[str, set[int]]:
    """For each column, the rows that are significantly better than all others of their group."""
    marked: dict[str, set[int]] = {column: set() for column in results["columns"]}
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(results["rows"]):
        groups.setdefault(row["group"], []).append(number)
    for column in results["columns"]:
        cells = [row["cells"][column] for row in results["rows"]]
        for rows in groups.values():
            top = max(rows, key=lambda i: cells[i]["accuracy"])
            others = [i for i in rows if i != top]
            if others and all(difference(cells[top], cells[i])[1] > 0 for i in others):
                marked[column].add(top)
    return marked


def _row(results: dict[str, Any], model: str, defense: str) -> Row | None:
    """The first row of a model and a defence."""
    rows = (r for r in results["rows"] if r["model"] == model and r["defense"] == defense)
    return next(rows, None)
