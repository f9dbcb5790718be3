"""Section 3.2 measured: linearity, predictions (Figure 2), mechanisms, and the detection gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixup_inference.reporting.figures.chart import Chart, Row
from mixup_inference.reporting.figures.style import (
    BLUE,
    GREEN,
    KINDS,
    RED,
    Look,
    distinct,
    lam_axis,
    legend_below,
    line,
    look,
    only,
    points,
    zero,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Z = 1.96
SYMBOLS = {"y": "$F_y$", "y_hat": r"$F_{\hat{y}}$"}
#: What Figure 2 shows: the input, the component, its look and its name in the legend. On clean
#: inputs y_hat = y (Eq. 2), so that one component says it all.
SERIES: tuple[tuple[str, str, Look, str], ...] = (
    ("clean", "y", BLUE, r"clean, $F_y = F_{\hat{y}}$"),
    ("adversarial", "y", GREEN, "adversarial, $F_y$"),
    ("adversarial", "y_hat", RED, r"adversarial, $F_{\hat{y}}$"),
)


def within(estimate: dict[str, float]) -> dict[str, float]:
    """An estimate with the interval of 1.96 standard errors.

    >>> within({"mean": 3.0, "se": 1.0})
    {'value': 3.0, 'low': 1.04, 'high': 4.96}
    """
    mean, arm = estimate["mean"], Z * estimate["se"]
    return {"value": mean, "low": mean - arm, "high": mean + arm}


def exactly(value: float) -> dict[str, float | None]:
    """A value that is computed, not measured: it has no interval."""
    return {"value": value, "low": None, "high": None}


def linearity(models: dict[str, Any], *, name: str = "linearity", of: str = "") -> Chart:
    """How far each model is from linear between clean images, over the mixing ratio."""
    rows = []
    for model, entry in models.items():
        found = entry["linearity"]
        for lam, estimate in zip(found["lams"], found["curve"], strict=True):
            rows.append({"model": model, "quantity": "at λ", "lam": lam, **within(estimate)})
        overall = within(found["overall"])
        rows.append({"model": model, "quantity": "mean over λ", "lam": None, **overall})
    title = f"Distance from linearity between clean images{of}"
    return Chart(name, title, rows, _paint_linearity, (7.2, 4.2))


def _paint_linearity(figure: Figure, rows: list[Row]) -> None:
    axes = figure.add_subplot()
    for number, model in enumerate(distinct(rows, "model")):
        curve = only(rows, model=model, quantity="at λ")
        (mean,) = only(rows, model=model, quantity="mean over λ")
        arm = mean["high"] - mean["value"]
        label = f"{model} (mean {mean['value']:.3f} ± {arm:.3f})"
        style = look(number)
        points(axes, curve, style, x="lam", label=label, line=style.line)
    lam_axis(axes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("total variation (0: linear)")
    legend_below(figure, axes, columns=2)


def predictions(model: str, entry: dict[str, Any]) -> Chart:
    """Figure 2: F_MI's components y and y_hat over lam, and what Table 1 says they should be.

    Rows with lam = 1 and the source "without MI" are F(x) itself.
    """
    rows = []
    seen = set()
    for found in entry["theory"]:
        for given, component, _, _ in SERIES:
            part = found[given]
            row = {"model": model, "attack": found["attack"], "kind": found["kind"].upper()}
            row |= {"input": given, "component": component}
            if tuple(row.values()) not in seen:  # it is the same for every lam
                seen.add(tuple(row.values()))
                rows.append({**row, "lam": 1.0, "source": "without MI", **within(part[component])})
            measured, theory = part[f"{component}_mi"], part["theory"][f"{component}_mi"]
            rows.append({**row, "lam": found["lam"], "source": "measured", **within(measured)})
            rows.append({**row, "lam": found["lam"], "source": "theory", **exactly(theory)})
    attacks = " and ".join(distinct(rows, "attack"))
    title = f"Predictions: {model}, {attacks} PGD-{entry['steps']}"
    height = 2.5 * len(distinct(rows, "attack")) + 1.4
    return Chart(f"predictions-{model}", title, rows, _paint_predictions, (8, height))


def _paint_predictions(figure: Figure, rows: list[Row]) -> None:
    attacks, kinds = distinct(rows, "attack"), distinct(rows, "kind")
    grid = figure.subplots(len(attacks), len(kinds), sharex=True, sharey=True, squeeze=False)
    for panels, attack in zip(grid, attacks, strict=True):
        for axes, kind in zip(panels, kinds, strict=True):
            some = only(rows, attack=attack, kind=kind)
            for number, (given, component, style, _) in enumerate(SERIES):
                series = only(some, input=given, component=component)
                shift = 0.01 * (number - 1)
                line(axes, only(series, source="theory"), style)
                points(axes, only(series, source="measured"), style, x="lam", shift=shift)
                plain = only(series, source="without MI")
                points(axes, plain, style, x="lam", shift=shift, hollow=True)
            axes.set_title(f"{kind}, {attack}")
    for axes in grid[-1]:
        lam_axis(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean prediction")
    _key(figure)


def _key(figure: Figure) -> None:
    """A legend of two lines: the series above, the three ways in which each is drawn below."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = []
    ways = (
        Line2D([], [], color="#666666", label="line: theory (Table 1)"),
        Line2D([], [], color="#666666", marker="o", linestyle="", label="filled: measured"),
        Line2D([], [], color="#666666", marker="o", linestyle="", markerfacecolor="white",
               label="hollow: without MI"),
    )  # fmt: skip
    for (_, _, style, label), way in zip(SERIES, ways, strict=True):
        series = Line2D([], [], color=style.colour, marker=style.marker, linestyle=style.line)
        series.set_label(label)
        handles += [series, way]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(SERIES))


BOUND = Look("#000000", "", "-")
QUANTITIES = {
    "input transfer": ("input_transfer", BLUE),
    "perturbation shrinkage": ("perturbation_shrinkage", GREEN),
    "sum": ("change", RED),
}


def mechanisms(model: str, entry: dict[str, Any]) -> list[Chart]:
    """Eq. 13's two mechanisms over lam and the bound on their sum (Eq. 12, 15), per attack."""
    rows = []
    for found in entry["theory"]:
        for component in ("y", "y_hat"):
            row = {"model": model, "attack": found["attack"], "kind": found["kind"].upper()}
            row |= {"component": component, "lam": found["lam"]}
            part = found[component]
            for quantity, (key, _) in QUANTITIES.items():
                rows.append({**row, "quantity": quantity, **within(part[key])})
            rows.append({**row, "quantity": "bound", **exactly(part["bound"])})
    return [
        Chart(
            f"mechanisms-{model}-{attack}",
            f"Mechanisms: {model}, {attack} PGD-{entry['steps']}",
            only(rows, attack=attack),
            _paint_mechanisms,
            (8, 6.2),
        )
        for attack in distinct(rows, "attack")
    ]


def _paint_mechanisms(figure: Figure, rows: list[Row]) -> None:
    kinds = distinct(rows, "kind")
    grid = figure.subplots(2, len(kinds), sharex=True, sharey="row", squeeze=False)
    for panels, component in zip(grid, ("y", "y_hat"), strict=True):
        for axes, kind in zip(panels, kinds, strict=True):
            some = only(rows, kind=kind, component=component)
            for number, (quantity, (_, style)) in enumerate(QUANTITIES.items()):
                series = only(some, quantity=quantity)
                shift = 0.012 * (number - 1)
                points(axes, series, style, x="lam", label=quantity, line=style.line, shift=shift)
            line(axes, only(some, quantity="bound"), BOUND, label="bound on the sum (Eq. 12, 15)")
            zero(axes)
            side = "below" if component == "y" else "above"
            symbol = SYMBOLS[component].replace("F", "G")
            axes.set_title(f"{kind}, {symbol}: the sum must be {side} the bound")
    for axes in grid[-1]:
        lam_axis(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean change of G")
    legend_below(figure, grid[0, 0], columns=4)


def detection_gap(model: str, entry: dict[str, Any]) -> Chart:
    """The detection gap over lam, measured and as Eq. 14 and 16 have it."""
    rows = []
    for found in entry["theory"]:
        row = {"model": model, "attack": found["attack"], "kind": found["kind"].upper()}
        row |= {"lam": found["lam"]}
        rows.append({**row, "source": "measured", **within(found["detection_gap"])})
        rows.append({**row, "source": "theory", **exactly(found["detection_gap_theory"])})
    attacks = " and ".join(distinct(rows, "attack"))
    title = f"Detection gap: {model}, {attacks} PGD-{entry['steps']}"
    width = 8 if len(distinct(rows, "attack")) > 1 else 5
    return Chart(f"detection-gap-{model}", title, rows, _paint_gap, (width, 3.8))


def _paint_gap(figure: Figure, rows: list[Row]) -> None:
    attacks = distinct(rows, "attack")
    (grid,) = figure.subplots(1, len(attacks), sharex=True, sharey=True, squeeze=False)
    for axes, attack in zip(grid, attacks, strict=True):
        for number, (kind, style) in enumerate(KINDS.items()):
            some = only(rows, attack=attack, kind=kind)
            line(axes, only(some, source="theory"), style, label=f"{kind}, theory")
            measured, shift = only(some, source="measured"), 0.012 * (number - 0.5)
            points(axes, measured, style, x="lam", label=f"{kind}, measured", shift=shift)
        zero(axes)
        axes.set_title(attack)
        lam_axis(axes)
    grid[0].set_ylabel("gap (higher: easier to detect)")
    legend_below(figure, grid[0], columns=4)
