"""Detection: AUC over lam (Figure 3a), ROC curves, and MI-Combined over its threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixup_inference.reporting.figures import style
from mixup_inference.reporting.figures.chart import Chart, Record, distinct, estimate, only
from mixup_inference.reporting.schema import Analysis, Score
from mixup_inference.reporting.selection import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def auc(model: str, entry: Analysis) -> Chart:
    """Figure 3a: AUC of the gaps over lam, and of the scores without a ratio."""
    scores = entry["detection"]["scores"]
    rows = [_score(model, found) | estimate(found, "auc") for found in scores]
    attacks = distinct(rows, "attack")
    title = f"AUC of detection: {model}, {' and '.join(attacks)} PGD-{entry['steps']}"
    return Chart(f"auc-{model}", title, rows, _paint_auc, (8 if len(attacks) > 1 else 5, 4))


def _score(model: str, found: Score) -> Record:
    """What identifies a score in a row of chart data."""
    return {"model": model} | {key: found[key] for key in ("attack", "score", "lam")}


def _paint_auc(figure: Figure, rows: list[Record]) -> None:
    for axes, found in style.panels(figure, rows, "attack", ylabel="AUC, with 95% intervals"):
        for number, (score, look) in enumerate(style.styles(rows, "score").items()):
            some, shift = only(found, score=score), 0.012 * (number - 0.5)
            for row in only(some, lam=None):
                axes.axhspan(row["low"], row["high"], color=look.colour, alpha=0.15, linewidth=0)
                axes.axhline(row["value"], color=look.colour, linestyle=look.line, label=score)
            if curve := [row for row in some if row["lam"] is not None]:
                style.points(axes, curve, look, label=score, shift=shift)
        axes.set_title(found[0]["attack"])
        style.zero(axes, 0.5)
        style.lam_axis(axes)
    style.legend_below(figure, columns=4)


def roc(model: str, entry: Analysis) -> Chart:
    """ROC curves at the ratio nearest to 0.5."""
    scores = nearest(entry["detection"]["scores"])
    lam = max(found["lam"] for found in scores if found["lam"] is not None)
    rows = [
        _score(model, found)
        | {"auc": found["auc"], "false_positives": false, "true_positives": true}
        for found in scores
        if "roc" in found
        for false, true in zip(*found["roc"].values(), strict=True)
    ]
    attacks = distinct(rows, "attack")
    title = f"ROC at λ = {lam:g}: {model}, {' and '.join(attacks)} PGD-{entry['steps']}"
    return Chart(f"roc-{model}", title, rows, _paint_roc, (8 if len(attacks) > 1 else 4.6, 4.6))


def _paint_roc(figure: Figure, rows: list[Record]) -> None:
    for axes, found in style.panels(figure, rows, "attack", ylabel="attacked inputs flagged (%)"):
        for score, look in style.styles(rows, "score").items():
            if some := only(found, score=score):
                rates = ("false_positives", "true_positives")
                x, y = ([100 * row[rate] for row in some] for rate in rates)
                label = f"{score} ({some[0]['auc']:.2f})"
                axes.plot(x, y, color=look.colour, linestyle=look.line, label=label)
        axes.plot([0, 100], [0, 100], color="#888888", linewidth=0.8)
        axes.set_title(found[0]["attack"])
        axes.set(aspect="equal", xlim=(-1, 101), ylim=(-1, 101))
        axes.set_xlabel("clean inputs flagged (%)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, title="score (AUC)")


def combined(model: str, entry: Analysis) -> Chart:
    """MI-Combined over its threshold: accuracy, and the share of inputs that it flags."""
    found = entry["detection"]["combined"]
    attacks = [key for key in found[0] if f"{key} flagged" in found[0] and key != "clean"]
    rows = []
    for quantity, suffix in (("accuracy", ""), ("flagged", " flagged")):
        for given in ("clean", *attacks):
            for step in found:
                row = {"model": model, "lam": step["lam"], "threshold": step["threshold"]}
                row |= {"input": given, "quantity": quantity}
                rows.append(row | estimate(step[given + suffix]))
    named = f"{model}, {' and '.join(attacks)} PGD-{entry['steps']}"
    title = f"MI-Combined at λ = {found[0]['lam']:g}: {named}"
    return Chart(f"combined-{model}", title, rows, _paint_combined, (8, 3.8))


def _paint_combined(figure: Figure, rows: list[Record]) -> None:
    for axes, found in style.panels(figure, rows, "quantity", ylabel="percent, with 95% bands"):
        for given, look in style.styles(rows, "input").items():
            some = only(found, input=given)
            x = [row["threshold"] for row in some]
            low, value, high = (
                [100 * row[key] for row in some] for key in ("low", "value", "high")
            )
            axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
            drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
            axes.plot(x, value, **drawn, markevery=3, label=given)
        quantity = found[0]["quantity"]
        axes.set_title("accuracy (%)" if quantity == "accuracy" else "inputs flagged (%)")
        axes.set_ylim(-2, 102)
        axes.set_xlabel("threshold of the MI-PL gap")
    style.legend_below(figure, columns=3)
