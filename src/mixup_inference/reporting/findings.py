"""What the numbers of a run say, in sentences: a summary, the paper's claims, the best cells.

Everything follows from results.json. Differences of two accuracies carry Newcombe's 95% interval,
which takes the two for independent; measured on the same points, they usually go together, and
then it is rather too wide than too narrow. Nothing is called better unless its interval says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mixup_inference.evaluation.accuracy import difference
from mixup_inference.evaluation.detecting import middle
from mixup_inference.reporting.adaptive import headline
from mixup_inference.reporting.tables import last_of_each_mode, percent

Verdict = Literal["holds", "does not hold", "undecided"]
MI = ("mi-ol", "mi-pl", "mi-combined")
BASELINES = ("gaussian", "rotation", "resize-pad", "crop-resize")
#: Mean deviation from linearity (total variation): below the first a model is close to linear,
#: above the second far from it. A rule of thumb.
NEAR, FAR = 0.1, 0.2
#: As good as means: not worse by this much.
MARGIN = 0.03


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, and what this run says about it."""

    claim: str
    source: str
    verdict: Verdict
    evidence: str


Row = dict[str, Any]
Difference = tuple[float, float, float]


def summary(results: dict[str, Any]) -> list[str]:
    """A few sentences: what was tested, does the defence help, at what cost, can it work."""
    pairs = [
        (row, base)
        for row in results["rows"]
        if row["defense"] in MI and (base := _row(results, row["model"], "none"))
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
    figures = results.get("figures", {})
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
    gains = [difference(row["cells"][c], base["cells"][c]) for c in _hardest(results)]
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
        f"on clean images {_points(clean)}, {row['passes_per_image']:.0f} forward passes an image"
    )
    if not effect:
        return f"{row['title']}: {cost}."
    told = ", ".join(
        f"{column} {percent(row['cells'][column]['accuracy'])}% instead of "
        f"{percent(base['cells'][column]['accuracy'])}%"
        for column in _hardest(results)
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


def claims(results: dict[str, Any]) -> list[Claim]:
    """The paper's claims that this run has something to say about.

    They are about objectives: a model that was brought along and does not say how it was trained
    is not judged.
    """
    made = [*_claims_of_table(results), *_claims_of_figures(results)]
    return [claim for claim in made if claim is not None]


def _objective(results: dict[str, Any], model: str) -> str | None:
    """What a model of the run was trained with."""
    if training := (results.get("trainings") or {}).get(model):
        return str(training["objective"])
    spec = results["spec"]
    entry = spec.get("models", {}).get(model, {})
    if "weights" in entry:
        return None
    objective: str | None = entry.get("objective") or spec.get("training", {}).get("objective")
    return objective


TRAINED = {"mixup": "a mixup-trained model", "iat": "interpolated AT"}


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
    for plain, with_mixup in (("erm", "mixup"), ("at", "iat")):
        yield _ablation(results, plain, with_mixup)
    yield _combined(results)


def _compare(results: dict[str, Any], claim: str, row: Row, others: list[Row]) -> Claim | None:
    """Whether MI-OL beats all of its rivals under the hardest attacks."""
    columns = _hardest(results)
    if not others or not columns:
        return None
    gains, told = [], []
    for column in columns:
        rival = max(others, key=lambda r: r["cells"][column]["accuracy"])
        gains.append(difference(row["cells"][column], rival["cells"][column]))
        told.append(f"{column}: {_points(gains[-1])} against {rival['title']}")
    compared = "" if len(others) == 1 else f" (the best of {', '.join(r['title'] for r in others)})"
    evidence = f"{row['title']}, {'; '.join(told)}{compared}."
    return Claim(claim, "Section 4.3, Tables 2 and 3", _verdict(gains), evidence)


def _ablation(results: dict[str, Any], plain: str, with_mixup: str) -> Claim | None:
    """Whether MI-OL gains more on a model with mixup than on the same without."""
    columns, told, signs = _hardest(results), [], []
    rows = {
        o: (_trained_row(results, o, "mi-ol"), _trained_row(results, o, "none"))
        for o in (plain, with_mixup)
    }
    if not columns or any(row is None for pair in rows.values() for row in pair):
        return None
    for column in columns:
        gain = {
            o: difference(defended["cells"][column], bare["cells"][column])
            for o, (defended, bare) in rows.items()
            if defended is not None and bare is not None
        }
        more, less = gain[with_mixup], gain[plain]
        signs.append((more[0] - less[0], more[1] - less[2], more[2] - less[1]))
        told.append(f"{column}: {with_mixup} {_points(more)}, {plain} {_points(less)}")
    return Claim(
        f"The gain comes from mixup training: MI-OL gains more on {with_mixup} than on {plain}.",
        "Table 2, ablation",
        _verdict(signs),
        "; ".join(told) + ".",
    )


def _combined(results: dict[str, Any]) -> Claim | None:
    combined, other = (_trained_row(results, "mixup", k) for k in ("mi-combined", "mi-ol"))
    if combined is None or other is None or not _hardest(results):
        return None
    columns = ["clean", *_hardest(results)]
    gains = [difference(combined["cells"][c], other["cells"][c]) for c in columns]
    told = [f"{c}: {_points(g)}" for c, g in zip(columns, gains, strict=True)]
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


def _claims_of_figures(results: dict[str, Any]) -> Iterable[Claim | None]:
    figures = results.get("figures", {})
    by_objective = {_objective(results, name): name for name in reversed(figures)}
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


def _condition_intervals(entry: Row) -> list[Difference]:
    """F_y must rise and F_yhat must fall: both as something that must be positive."""
    seen, count = entry["adversarial"], entry["counts"]["used"]
    rise, fall = _around(seen["delta_y"], count), _around(seen["delta_y_hat"], count)
    return [rise, (-fall[0], -fall[2], -fall[1])]


def _around(estimate: Row, count: int) -> Difference:
    """A mean of ``count`` values and its 95% interval by Student's t."""
    from scipy.stats import t  # noqa: PLC0415 (slow to import)

    mean, arm = estimate["mean"], float(t.ppf(0.975, max(count - 1, 1))) * estimate["se"]
    return mean, mean - arm, mean + arm


def _told(interval: Difference) -> str:
    return f"{interval[0]:.3f} ± {interval[2] - interval[0]:.3f}"


def _nearest(entries: list[Row]) -> list[Row]:
    """Those with the ratio nearest to 0.5; entries without one are all kept."""
    ratios = {e["lam"] for e in entries if e["lam"] is not None}
    return [e for e in entries if e["lam"] == middle(ratios)] if ratios else entries


def _verdict(differences: Iterable[Difference]) -> Verdict:
    """Holds if all are surely positive, does not if one is surely negative."""
    given = list(differences)
    if given and all(low > 0 for _, low, _ in given):
        return "holds"
    if any(high < 0 for _, _, high in given):
        return "does not hold"
    return "undecided"


def _row(results: dict[str, Any], model: str, defense: str) -> Row | None:
    """The first row of a model and a defence."""
    rows = (r for r in results["rows"] if r["model"] == model and r["defense"] == defense)
    return next(rows, None)


def _trained_row(results: dict[str, Any], objective: str, defense: str) -> Row | None:
    """The first row of a defence on a model that was trained with an objective."""
    return next(iter(_trained_rows(results, objective, defense)), None)


def _trained_rows(
    results: dict[str, Any], objective: str, defense: str, *, model: str | None = None
) -> list[Row]:
    """The rows of a defence on models, or one, that were trained with an objective."""
    return [
        row
        for row in results["rows"]
        if row["defense"] == defense
        and _objective(results, row["model"]) == objective
        and model in (None, row["model"])
    ]


def _hardest(results: dict[str, Any]) -> list[str]:
    """Of each attack mode the column with the most steps."""
    return [column for column in last_of_each_mode(results["columns"]) if column != "clean"]


def _points(gain: Difference) -> str:
    """A difference in percentage points, with its interval."""
    value, low, high = (100 * number for number in gain)
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
