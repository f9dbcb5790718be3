"""The summary of a run in sentences, and the best cells of the table.

Differences of two accuracies on the same points carry Newcombe's 95% interval for pairs. Nothing
is called better unless its interval excludes zero.
"""

from __future__ import annotations

from mixup_inference.defenses import group_of
from mixup_inference.metrics.accuracy import difference
from mixup_inference.reporting.adaptive import summarize_adaptive
from mixup_inference.reporting.formatting import format_change, percent
from mixup_inference.reporting.schema import Linearity, Results, Row
from mixup_inference.reporting.selection import gain, strongest_attacks, with_undefended

#: Mean deviation from linearity (total variation): below the first a model is close to linear,
#: above the second far from it. A rule of thumb.
NEAR, FAR = 0.1, 0.2

NO_EFFECT = "has no significant effect on robust accuracy"


def summary(results: Results) -> list[str]:
    """What was evaluated, whether mixup inference helps, at what cost, and why."""
    pairs = [pair for pair in with_undefended(results) if group_of(pair[0]["defense"]) == "mixup"]
    adaptive = summarize_adaptive(results.get("adaptive"))
    sentences = [_setup(results), *([adaptive] if adaptive else [])]
    if reused := results.get("reused_models"):
        sentences.append(
            "Trained by an older version of the code and reused on purpose (--reuse-models): "
            f"{', '.join(reused)}."
        )
    same = []
    for row, base in pairs:
        effect = _effect(results, row, base)
        if effect == NO_EFFECT:
            same.append(row["title"])
        else:
            sentences.append(_describe(results, row, base, effect))
    if same:
        sentences.append(f"No significant effect on robust accuracy: {', '.join(same)}.")
    figures = results.get("figures") or {}
    return sentences + [
        describe_linearity(name, entry["linearity"]) for name, entry in figures.items()
    ]


def _setup(results: Results) -> str:
    attack, points = results["spec"].get("attack"), results["points"]["test"]
    where = f"{points} test points of {results['spec']['data']['name']}"
    if attack is None:
        return f"Evaluated on {where}, without an attack."
    modes, steps = " and ".join(attack["modes"]), ", ".join(str(s) for s in attack["steps"])
    return (
        f"Evaluated on {where} under oblivious attacks: {modes} PGD with {steps} steps against the "
        "undefended model."
    )


def _effect(results: Results, row: Row, base: Row) -> str:
    """The effect of a defence under the strongest oblivious attacks; empty without an attack."""
    gains = [gain(row, base, column) for column in strongest_attacks(results["columns"])]
    if not gains:
        return ""
    if all(low > 0 for _, low, _ in gains):
        return "significantly increases robust accuracy"
    if all(high < 0 for _, _, high in gains):
        return "significantly decreases robust accuracy"
    if any(low > 0 or high < 0 for _, low, high in gains):
        return "has an effect on robust accuracy that depends on the attack"
    return NO_EFFECT


def _describe(results: Results, row: Row, base: Row, effect: str) -> str:
    """One defended row against its undefended model."""
    clean = format_change(gain(row, base, "clean"))
    cost = f"clean accuracy {clean}, {row['passes_per_image']:.0f} forward passes per image"
    if not effect:
        return f"{row['title']}: {cost}."
    accuracies = ", ".join(
        f"{column} {percent(row['cells'][column]['accuracy'])}% instead of "
        f"{percent(base['cells'][column]['accuracy'])}%"
        for column in strongest_attacks(results["columns"])
    )
    return f"{row['title']} {effect}: {accuracies}. Cost: {cost}."


def describe_linearity(name: str, linearity: Linearity) -> str:
    """Whether a model is linear enough for mixup inference."""
    value = linearity["overall"]["mean"]
    if value < NEAR:
        text = "close to linear between clean samples, as mixup inference assumes"
    elif value < FAR:
        text = "only roughly linear between clean samples: expect part of the theoretical gain"
    else:
        text = "far from linear between clean samples: expect little from mixup inference"
    return f"{name} is {text} (mean deviation {value:.3f})."


def best(results: Results) -> dict[str, set[int]]:
    """For each column, the rows that are significantly better than all others of their group."""
    marked: dict[str, set[int]] = {column: set() for column in results["columns"]}
    groups = [row["group"] for row in results["rows"]]
    for column in results["columns"]:
        cells = [row["cells"][column] for row in results["rows"]]
        for group in set(groups):
            rows = [i for i, other in enumerate(groups) if other == group]
            top = max(rows, key=lambda i: cells[i]["accuracy"])
            others = [i for i in rows if i != top]
            if others and all(difference(cells[top], cells[i])[1] > 0 for i in others):
                marked[column].add(top)
    return marked
