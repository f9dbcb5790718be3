"""Images as PNG and predictions by name, for the galleries in results.json."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mixup_inference.datasets import LabelledImages


def png(image: Tensor) -> str:
    """A small image as PNG in base64."""
    from PIL import Image  # noqa: PLC0415

    pixels = image.clamp(0, 1).mul(255).round().byte().cpu().permute(1, 2, 0).numpy()
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode("ascii")


def top(log_p: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    """The predicted class by name, and its probability."""
    best = int(log_p.argmax())
    return {"predicted": names[best], "confidence": float(log_p[best].exp())}


def example(
    points: LabelledImages, i: int, shown: Mapping[str, tuple[Tensor, Tensor]], *, eps: float
) -> dict[str, Any]:
    """One point: its perturbation, and what is shown of it, with the prediction for each.

    ``shown`` has the images of all points and their log-probabilities, "clean" and "adversarial"
    among them.
    """
    entry: dict[str, Any] = {
        key: {"image": png(images[i]), **top(log_p[i], points.class_names)}
        for key, (images, log_p) in shown.items()
    }
    change = shown["adversarial"][0][i] - shown["clean"][0][i]
    return entry | {
        "point": int(points.index[i]),
        "label": points.class_names[int(points.labels[i])],
        "perturbation": png(0.5 + change / (2 * eps)),
    }
