"""Section 3.2 measured: linearity, predictions (Figure 2), mechanisms, and the detection gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from mixup_inference.metrics.accuracy import mean_interval
from mixup_inference.reporting.figures import style
from mixup_inference.reporting.figures.chart import Chart, Record, distinct, only
from mixup_inference.reporting.labels import defense_title
from mixup_inference.reporting.schema import Analysis, Mean, Theory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPONENTS: tuple[Literal["y"], Literal["y_hat"]] = ("y", "y_hat")
#: The change of each component, and on which side of the bound it must lie.
SIDES = {"y": ("$G_y$", "below"), "y_hat": (r"$G_{\hat{y}}$", "above")}
#: The series of Figure 2: input, component, style and legend. On clean inputs y_hat = y (Eq. 2), so
#: one component is enough.
SERIES: tuple[tuple[Literal["clean", "adversarial"], str, style.SeriesStyle, str], ...] = (
    ("clean", "y", style.BLUE, r"clean, $F_y = F_{\hat{y}}$"),
    ("adversarial", "y", style.GREEN, "adversarial, $F_y$"),
    ("adversarial", "y_hat", style.RED, r"adversarial, $F_{\hat{y}}$"),
)


def measured(estimate: Mean, count: int) -> dict[str, float]:
    """A mean of ``count`` values and its 95% interval, for a row of chart data."""
    interval = mean_interval(estimate["mean"], estimate["se"], count)
    return dict(zip(("value", "low", "high"), interval, strict=True))


def computed(value: float) -> dict[str, float | None]:
    """A computed value, which has no interval, for a row of chart data."""
    return {"value": value, "low": None, "high": None}


def linearity(models: Mapping[str, Analysis], *, name: str = "linearity", of: str = "") -> Chart:
    """Each model's distance from linearity between clean images, over the mixing ratio."""
    rows = []
    for model, entry in models.items():
        found = entry["linearity"]
        for lam, estimate in zip(found["lams"], found["curve"], strict=True):
            at_lam = measured(estimate, found["pairs"])
            rows.append({"model": model, "quantity": "at λ", "lam": lam, **at_lam})
        overall = measured(found["overall"], found["pairs"])
        rows.append({"model": model, "quantity": "mean over λ", "lam": None, **overall})
    title = f"Distance from linearity between clean images{of}"
    return Chart(name, title, rows, _paint_linearity, (7.2, 4.2))


def _paint_linearity(figure: Figure, rows: list[Record]) -> None:
    axes = figure.add_subplot()
    for model, look in style.styles(rows, "model").items():
        curve = only(rows, model=model, quantity="at λ")
        (mean,) = only(rows, model=model, quantity="mean over λ")
        arm = mean["high"] - mean["value"]
        label = f"{model} (mean {mean['value']:.3f} ± {arm:.3f})"
        style.points(axes, curve, look, label=label)
    style.lam_axis(axes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("total variation (0: linear)")
    style.legend_below(figure, columns=2)


def predictions(model: str, entry: Analysis) -> Chart:
    """Figure 2: F_MI's components y and y_hat over lam, measured and according to Table 1.

    Rows with lam = 1 and the source "without MI" are F(x) itself.
    """
    rows = []
    seen = set()
    for found in entry["theory"]:
        for given, component, _, _ in SERIES:
            part, used = found[given], found["counts"]["used"]
            row = _common(model, found) | {"input": given, "component": component}
            if tuple(row.values()) not in seen:  # it is the same for every lam
                seen.add(tuple(row.values()))
                plain = measured(part[component], used)
                rows.append({**row, "lam": 1.0, "source": "without MI", **plain})
            row["lam"], key = found["lam"], f"{component}_mi"
            rows.append({**row, "source": "measured", **measured(part[key], used)})
            rows.append({**row, "source": "theory", **computed(part["theory"][key])})
    attacks = " and ".join(distinct(rows, "attack"))
    title = f"Predictions: {model}, {attacks} PGD-{entry['steps']}"
    height = 2.5 * len(distinct(rows, "attack")) + 1.4
    return Chart(f"predictions-{model}", title, rows, _paint_predictions, (8, height))


def _common(model: str, found: Theory) -> Record:
    """What all rows of an analysis share."""
    return {"model": model, "attack": found["attack"], "kind": defense_title(found["kind"])}


def _paint_predictions(figure: Figure, rows: list[Record]) -> None:
    for axes, some in style.panels(figure, rows, "kind", "attack", ylabel="mean prediction"):
        for number, (given, component, look, _) in enumerate(SERIES):
            series = only(some, input=given, component=component)
            aside: Record = {"line": False, "shift": 0.01 * (number - 1)}
            style.line(axes, only(series, source="theory"), look)
            style.points(axes, only(series, source="measured"), look, **aside)
            style.points(axes, only(series, source="without MI"), look, hollow=True, **aside)
        axes.set_title(f"{some[0]['kind']}, {some[0]['attack']}")
        style.lam_axis(axes)
    _key(figure)


def _key(figure: Figure) -> None:
    """Draw a legend of two lines: the series above, the three markers of each below."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = []
    ways: list[tuple[str, Record]] = [
        ("line: theory (Table 1)", {}),
        ("filled: measured", {"marker": "o", "linestyle": ""}),
        ("hollow: without MI", {"marker": "o", "linestyle": "", "markerfacecolor": "white"}),
    ]
    for (_, _, look, label), (way, drawn) in zip(SERIES, ways, strict=True):
        own = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
        handles.append(Line2D([], [], label=label, **own))
        handles.append(Line2D([], [], label=way, color="#666666", **drawn))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(SERIES))


BOUND = style.SeriesStyle("#000000", "", "-")
QUANTITIES = {
    "input transfer": ("input_transfer", style.BLUE),
    "perturbation shrinkage": ("perturbation_shrinkage", style.GREEN),
    "sum": ("change", style.RED),
}


def mechanisms(model: str, entry: Analysis) -> list[Chart]:
    """Eq. 13's two mechanisms over lam and the bound on their sum (Eq. 12, 15), per attack."""
    rows = []
    for found in entry["theory"]:
        for component in COMPONENTS:
            row = _common(model, found) | {"component": component, "lam": found["lam"]}
            part, used = found[component], found["counts"]["used"]
            for quantity, (key, _) in QUANTITIES.items():
                rows.append({**row, "quantity": quantity, **measured(part[key], used)})
            rows.append({**row, "quantity": "bound", **computed(part["bound"])})
    charts = []
    for attack in distinct(rows, "attack"):
        title = f"Mechanisms: {model}, {attack} PGD-{entry['steps']}"
        some = only(rows, attack=attack)
        charts.append(
            Chart(f"mechanisms-{model}-{attack}", title, some, _paint_mechanisms, (8, 6.2))
        )
    return charts


def _paint_mechanisms(figure: Figure, rows: list[Record]) -> None:
    ylabel = "mean change of G"
    for axes, some in style.panels(figure, rows, "kind", "component", ylabel=ylabel, sharey="row"):
        for number, (quantity, (_, look)) in enumerate(QUANTITIES.items()):
            series = only(some, quantity=quantity)
            style.points(axes, series, look, label=quantity, shift=0.012 * (number - 1))
        bound = only(some, quantity="bound")
        style.line(axes, bound, BOUND, label="bound on the sum (Eq. 12, 15)")
        style.zero(axes)
        symbol, side = SIDES[some[0]["component"]]
        axes.set_title(f"{some[0]['kind']}, {symbol}: the sum must be {side} the bound")
        style.lam_axis(axes)
    style.legend_below(figure, columns=4)


def detection_gap(model: str, entry: Analysis) -> Chart:
    """The detection gap over lam, measured and according to Eq. 14 and 16."""
    rows = []
    for found in entry["theory"]:
        row = _common(model, found) | {"lam": found["lam"]}
        gap = measured(found["detection_gap"], found["counts"]["used"])
        rows.append({**row, "source": "measured", **gap})
        rows.append({**row, "source": "theory", **computed(found["detection_gap_theory"])})
    attacks = " and ".join(distinct(rows, "attack"))
    title = f"Detection gap: {model}, {attacks} PGD-{entry['steps']}"
    width = 8 if len(distinct(rows, "attack")) > 1 else 5
    return Chart(f"detection-gap-{model}", title, rows, _paint_gap, (width, 3.8))


def _paint_gap(figure: Figure, rows: list[Record]) -> None:
    ylabel = "gap (higher: easier to detect)"
    for axes, found in style.panels(figure, rows, "attack", ylabel=ylabel):
        for number, (kind, look) in enumerate(style.styles(rows, "kind").items()):
            some, shift = only(found, kind=kind), 0.012 * (number - 0.5)
            style.line(axes, only(some, source="theory"), look, label=f"{kind}, theory")
            seen, label = only(some, source="measured"), f"{kind}, measured"
            style.points(axes, seen, look, label=label, line=False, shift=shift)
        axes.set_title(found[0]["attack"])
        style.zero(axes)
        style.lam_axis(axes)
    style.legend_below(figure, columns=4)
