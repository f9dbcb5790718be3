"""The card of a guard: what it does, how sure that is, and what it must not be used for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from mixup_inference.models.checkpoint import config_of
from mixup_inference.reporting.formatting import format_eps, percent
from mixup_inference.utils.text import markdown_words

if TYPE_CHECKING:
    from mixup_inference.guard.guard import Guard

#: In a guard's folder.
CARD = "README.md"

TRAVELS = {
    "registry": "its weights are in this folder",
    "onnx": "it is in this folder as ONNX",
    "brought": "it is not in this folder: give it to `Guard.load(folder, model)`",
}


def card(guard: Guard, kind: str) -> str:
    """A guard's card, in Markdown; ``kind`` says how its network travels."""
    page = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 (Markdown)
    page.filters |= {"percent": percent, "words": markdown_words}
    evaluation = guard.evaluation
    text = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    return page.from_string(text).render(
        guard=guard,
        settings=guard.settings,
        network=markdown_words(network_name(guard)),
        travels=TRAVELS[kind],
        shape="x".join(map(str, guard.pool.images.shape[1:])),
        found=guard.calibration,
        cost=guard.pool_cost,
        stopping=guard.stopping,
        evaluation=evaluation,
        eps=evaluation and format_eps(evaluation.eps),
        ends=evaluation and evaluation.interval(evaluation.adaptive.evaded),
        outcomes=evaluation
        and (
            ("none", evaluation.clean),
            ("PGD that ignores the guard", evaluation.oblivious),
            ("PGD that knows the guard", evaluation.adaptive),
        ),
    )


def network_name(guard: Guard) -> str:
    """What the network is called: its name in the registry, or that of its class."""
    config = config_of(guard.model)
    return type(guard.model).__name__ if config is None else str(config["name"])
