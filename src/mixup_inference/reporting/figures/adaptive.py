"""Adaptive attacks (Figures 4 and 5), and galleries of inputs with the model's predictions."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mixup_inference.errors import InputError
from mixup_inference.reporting.figures import style
from mixup_inference.reporting.figures.chart import Chart, Record, distinct, estimate, only
from mixup_inference.reporting.formatting import format_eps
from mixup_inference.reporting.schema import Adaptive, Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The largest image that is decoded, against decompression bombs.
MAX_PIXELS = 4_000_000


def gallery(model: str, entry: Analysis) -> Chart:
    """The examples of a model, one per column."""
    found = entry["gallery"]
    given = {key: found[0][key] for key in ("attack", "lam")}
    title = f"Examples: {model}, {given['attack']} PGD-{entry['steps']}, λ = {given['lam']:g}"
    shown = ("clean", "perturbation", "adversarial", "mixed")
    return _gallery(f"gallery-{model}", title, found, shown, {"model": model, **given})


def examples(found: dict[str, Any]) -> Chart:
    """Figure 5: examples of an adaptive attack, one per column."""
    common = {"defense": found["title"], "attack": found["attack"], "eps": found["eps"]}
    given = f"{found['attack']}, eps {format_eps(found['eps'])}"
    title = f"Adaptive examples: {found['title']}, {given}"
    shown = ("clean", "perturbation", "adversarial")
    return _gallery("adaptive-examples", title, found["entries"], shown, common)


def _gallery(
    name: str, title: str, entries: list[dict[str, Any]], shown: Sequence[str], common: Record
) -> Chart:
    """Images of some test points as tidy rows, each with its prediction, if there is one."""
    rows = []
    for entry in entries:
        for part in shown:
            found = entry[part] if isinstance(entry[part], dict) else {"image": entry[part]}
            row = common | {"point": entry["point"], "label": entry["label"], "shown": part}
            row |= {key: found.get(key) for key in ("predicted", "confidence", "image")}
            rows.append(row)
    size = max(5.5, 1.35 * len(entries) + 0.5), round(1.8 * len(shown) + 0.2, 1)
    return Chart(name, title, rows, _paint_gallery, size)


def _paint_gallery(figure: Figure, rows: list[Record]) -> None:
    """Draw one example per column, and its images from top to bottom."""
    columns, lines = distinct(rows, "point"), distinct(rows, "shown")
    grid = figure.subplots(len(lines), len(columns), squeeze=False)
    for row in rows:
        axes = grid[lines.index(row["shown"]), columns.index(row["point"])]
        axes.imshow(pixels(row["image"]), cmap="gray", vmin=0, vmax=255, interpolation="none")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
        above = f"true: {row['label']}" if row["shown"] == lines[0] else ""
        axes.set_title(above, fontsize=9, parse_math=False)
        if row["predicted"] is not None:
            below = f"{row['predicted']}\n{100 * row['confidence']:.0f}%"
            axes.set_xlabel(below, fontsize=9, parse_math=False)
    for axes, shown in zip(grid[:, 0], lines, strict=True):
        axes.set_ylabel("perturbation,\nmagnified" if shown == "perturbation" else shown)


def pixels(image: str) -> Any:
    """Decode a PNG in base64."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    with Image.open(io.BytesIO(base64.b64decode(image)), formats=("PNG",)) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise InputError(f"an image in the results has more than {MAX_PIXELS:,} pixels.")
        return np.asarray(picture)


BASE = "base"

#: The curves of Figure 4 in the order of the legend; the dashed line is the undefended model's.
CURVES: dict[str, tuple[str, style.SeriesStyle]] = {
    "official": ("published code", replace(style.GREEN, line=":")),
    "paper": ("paper's formula (Eq. 24)", replace(style.BLUE, line="-.")),
    "eot": ("EOT, through the defence", replace(style.RED, line="-")),
}

GREY = "#444444"


def adaptive_charts(adaptive: Adaptive) -> list[Chart]:
    """Figure 4 for each row that has it, and Figure 5."""
    found = [
        samples(f"samples-{number}", entry) for number, entry in enumerate(adaptive["samples"], 1)
    ]
    shown = adaptive["gallery"]
    return found + ([examples(shown)] if shown and shown["entries"] else [])


def samples(name: str, entry: dict[str, Any]) -> Chart:
    """Figure 4: accuracy over the number of adaptive samples, and that of the undefended model."""
    rows: list[Record] = [
        {"defense": entry["title"], "attack": attack, "samples": one["samples"]}
        | estimate(one["robust"])
        for attack, curve in entry["curves"].items()
        for one in curve
    ]
    if entry["base"]:
        base = {"defense": entry["base"]["title"], "attack": BASE, "samples": None}
        rows.append(base | estimate(entry["base"]["robust"]))
    count = next(one["robust"]["points"] for curve in entry["curves"].values() for one in curve)
    under = f"PGD-{entry['steps']}, {count} points"
    title = f"Accuracy over adaptive samples: {entry['title']}, {under}"
    return Chart(name, title, rows, _paint_samples, (6.4, 4.4))


def _paint_samples(figure: Figure, rows: list[Record]) -> None:
    axes = figure.add_subplot()
    for row in only(rows, attack=BASE):
        axes.axhspan(100 * row["low"], 100 * row["high"], color=GREY, alpha=0.12, linewidth=0)
        axes.axhline(100 * row["value"], color=GREY, linestyle="--", label="no defence")
    measured = [row for row in rows if row["attack"] != BASE]
    measured.sort(key=lambda row: [*CURVES, row["attack"]].index(row["attack"]))
    found = style.styles(measured, "attack")
    for number, (attack, usual) in enumerate(found.items()):
        label, look = CURVES.get(attack, (attack, usual))
        aside = 1.03 ** (number - (len(found) - 1) / 2)
        some = [row | {"x": aside * row["samples"]} for row in only(rows, attack=attack)]
        style.points(axes, some, look, x="x", label=label, scale=100)
    numbers = sorted(distinct(measured, "samples"))
    axes.set_xscale("symlog", base=2, linthresh=1)  # logarithmic, but includes 0
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("adaptive samples per step")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_ylabel("accuracy (%), with 95% intervals")
    style.legend_below(figure, columns=2)
