"""A few inputs: clean, the perturbation, adversarial, and mixed, with the model's answers."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

from mixup_inference.reporting.figures.chart import Chart, Row
from mixup_inference.reporting.figures.style import distinct, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("clean", "perturbation", "adversarial", "mixed")


def gallery(model: str, entry: dict[str, Any]) -> Chart:
    """The examples, one per column, as the paper's kind of figure."""
    rows = []
    for found in entry["gallery"]:
        for shown in SHOWN:
            part = found[shown]
            answered = part if isinstance(part, dict) else {"image": part}
            row: Row = {"model": model, "attack": found["attack"], "lam": found["lam"]}
            row |= {"point": found["point"], "label": found["label"], "shown": shown}
            row |= {"predicted": answered.get("predicted")}
            row |= {"confidence": answered.get("confidence"), "image": answered["image"]}
            rows.append(row)
    first = entry["gallery"][0]
    title = f"Examples: {model}, {first['attack']} PGD-{entry['steps']}, λ = {first['lam']:g}"
    width = max(5.5, 1.35 * len(entry["gallery"]) + 0.5)
    return Chart(f"gallery-{model}", title, rows, _paint_gallery, (width, 7.4))


def _paint_gallery(figure: Figure, rows: list[Row]) -> None:
    examples = distinct(rows, "point")
    grid = figure.subplots(len(SHOWN), len(examples), squeeze=False)
    for line, shown in zip(grid, SHOWN, strict=True):
        for axes, row in zip(line, only(rows, shown=shown), strict=True):
            axes.imshow(pixels(row["image"]), cmap="gray", vmin=0, vmax=255, interpolation="none")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(True)
            above = f"true: {row['label']}" if shown == SHOWN[0] else ""
            axes.set_title(above, fontsize=9, parse_math=False)
            if row["predicted"] is not None:
                below = f"{row['predicted']}\n{100 * row['confidence']:.0f}%"
                axes.set_xlabel(below, fontsize=9, parse_math=False)
        name = "perturbation,\nmagnified" if shown == "perturbation" else shown
        line[0].set_ylabel(name)


def pixels(image: str) -> Any:
    """A PNG in base64 as an array."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image))))
