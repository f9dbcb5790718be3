"""A few inputs: clean, the perturbation, adversarial, and mixed, with the model's answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mixup_inference.errors import InputError
from mixup_inference.reporting.figures.chart import Chart, Row
from mixup_inference.reporting.figures.style import distinct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of one picture; a bomb has more.
MAX_PIXELS = 4_000_000
SHOWN = ("clean", "perturbation", "adversarial", "mixed")


def gallery(model: str, entry: dict[str, Any]) -> Chart:
    """The examples, one per column, as the paper's kind of figure."""
    found = entry["gallery"]
    title = f"Examples: {model}, {found[0]['attack']} PGD-{entry['steps']}, λ = {found[0]['lam']:g}"
    rows = [
        row
        for one in found
        for row in shown_rows(one, SHOWN, model=model, attack=one["attack"], lam=one["lam"])
    ]
    return Chart(f"gallery-{model}", title, rows, paint_gallery, (gallery_width(found), 7.4))


def gallery_width(columns: list[Any]) -> float:
    """Inches for so many columns."""
    return max(5.5, 1.35 * len(columns) + 0.5)


def shown_rows(entry: dict[str, Any], shown: Sequence[str], **common: Any) -> list[Row]:
    """One example's pictures as tidy rows, each with the answer that it got, if any."""
    rows = []
    for name in shown:
        part = entry[name]
        answered = part if isinstance(part, dict) else {"image": part}
        row: Row = common | {"point": entry["point"], "label": entry["label"], "shown": name}
        row |= {key: answered.get(key) for key in ("predicted", "confidence", "image")}
        rows.append(row)
    return rows


def paint_gallery(figure: Figure, rows: list[Row]) -> None:
    """Examples from left to right, what is shown of them from top to bottom."""
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
    """A PNG in base64 as an array."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    with Image.open(io.BytesIO(base64.b64decode(image)), formats=("PNG",)) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise InputError(f"a picture in the results has more than {MAX_PIXELS:,} pixels.")
        return np.asarray(picture)
