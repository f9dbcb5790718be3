"""Images as PNG and predictions by name, for the galleries in results.json."""

from __future__ import annotations

import base64
import io
from typing import Any

from torch import Tensor


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
