"""Write the card of every shipped model, from its header and results/.

Run it after `ship.py` and `keep.py`. Linearity is measured for it, on the test images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ship import held_out, trained_on
from torch import nn

from mixup_inference import from_pretrained
from mixup_inference.metrics.accuracy import wilson
from mixup_inference.models import shipped_models
from mixup_inference.theory import linearity
from mixup_inference.training import OBJECTIVES

RESULTS = Path(__file__).parents[1] / "results"
TITLES = {
    "erm": "plain training (ERM)",
    "mixup": "mixup",
    "at": "adversarial training",
    "iat": "interpolated adversarial training",
}
LIMITS = """\
## What it must not be used for

- With mixup inference, against an attacker who knows of it. The attacks of this card ignore the
  defence, as those of the paper's tables do; attacks that target it can leave as little accuracy
  as there is without it.
- For decisions that matter: it knows {classes} classes in images of {size}x{size} pixels, and
  answers with one of them, whatever it sees.
- With test images in the pool: the measured accuracy would be too high.
"""


def card(name: str) -> str:
    """One model's card, in Markdown."""
    model = from_pretrained(name)
    header: dict[str, Any] = model.card
    recipe, data, objective = header["recipe"], header["data"], header["objective"]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    inner = (
        f"; {100 * recipe['adv_ratio']:g}% of the loss on attacked images; inner attack "
        f"{recipe['steps']} steps of {_in_255(recipe['step'])}, eps {_in_255(recipe['eps'])}"
        if OBJECTIVES[objective].adversarial
        else ""
    )
    mixing = _mixing(recipe) if OBJECTIVES[objective].uses_mixup else ""
    parts = [
        f"{recipe['epochs']} epochs",
        f"batches of {recipe['batch_size']}",
        _schedule(recipe),
        f"weight decay {recipe['weight_decay']:g}",
        *(["flips"] if recipe["flip"] else []),
        *(["crops"] if recipe["crop_padding"] else []),
    ]
    schedule = f"{', '.join(parts)}; {recipe['precision'] or '32-true'}; seed {header['seed']}"
    classes, size = (header["architecture"][key] for key in ("num_classes", "size"))
    facts = [
        ("data", f"{trained_on(data):,} images of {data}; the weights contain no images"),
        ("network", f"`{header['architecture']['name']}`, {parameters:,} parameters"),
        ("input", "NCHW, pixels in [0, 1]; the normalisation is inside"),
        ("recipe", f"{TITLES[objective]}{mixing}{inner}; {schedule}"),
        ("training time", _time(header["training_seconds"])),
        ("trained by", f"`mixup-inference train {data}-training`"),
        ("stored in", "16 bits; all accuracies below are of these weights"),
    ]
    lines = [
        f"# {name}",
        "",
        f'`from_pretrained("{name}")`, `--weights {name}`, or `weights = "{name}"` in a spec.',
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in facts),
        "",
        *_accuracy(header, data, objective),
        *_linearity(model, data),
        *_defended(data, objective),
        LIMITS.format(classes=classes, size=size),
    ]
    return "\n".join(lines)


def _time(seconds: int) -> str:
    shown = f"{seconds} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"{shown} on one core"


def _mixing(recipe: dict[str, Any]) -> str:
    """How the ratios of the mixtures are drawn."""
    if recipe["lam"] is not None:
        return f"; lambda {recipe['lam']:g} in all mixtures"
    each = "batch" if recipe.get("ratio") == "batch" else "sample"
    return f"; Beta({recipe['alpha']:g}, {recipe['alpha']:g}), a ratio for each {each}"


def _schedule(recipe: dict[str, Any]) -> str:
    if recipe["schedule"] == "step":
        return f"steps from {recipe['lr']:g}"
    if recipe["warmup"] == 0:
        return f"cosine from {recipe['lr']:g}"
    return f"one cycle up to {recipe['lr']:g}"


def _accuracy(header: dict[str, Any], data: str, objective: str) -> list[str]:
    clean = header["clean_accuracy"]
    rows = [("clean, all held-out images", clean["correct"], clean["total"])]
    for row in _results(data, objective).get("rows", ()):
        if row["model"] == objective and row["defense"] == "none":
            rows += [
                (f"{column}, attack on this model", cell["correct"], cell["total"])
                for column, cell in row["cells"].items()
                if column != "clean"
            ]
    lines = ["## Accuracy", "", "| | correct | of | percent, 95% interval |", "|---|---:|---:|---|"]
    for what, correct, total in rows:
        low, high = wilson(correct, total)
        share = f"{100 * correct / total:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        lines.append(f"| {what} | {correct:,} | {total:,} | {share} |")
    return [*lines, ""]


def _linearity(model: nn.Module, data: str) -> list[str]:
    found = linearity(model, held_out(data).pixels, pairs=1000)
    half = dict(zip(found.lams, found.curve, strict=True))[0.5]
    return [
        "## How linear it is",
        "",
        "The prediction half-way between two test images differs from the mean of their two",
        f"predictions by {half.mean:.3f} ± {1.96 * half.se:.3f} in total variation, on average",
        f"over {found.pairs:,} pairs (0: linear; 1: the largest possible difference).",
        "",
    ]


def _defended(data: str, objective: str) -> list[str]:
    results = _results(data, objective)
    rows = [
        row
        for row in results.get("rows", ())
        if row["model"] == objective and row["defense"].startswith("mi-")
    ]
    if not rows:
        return []
    columns = [c for c in rows[0]["cells"] if c == "clean" or c.endswith("PGD-10")]
    lines = [
        "## With mixup inference",
        "",
        "| | settings | " + " | ".join(columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for row in rows:
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
        cells = [f"{100 * row['cells'][c]['accuracy']:.1f}" for c in columns]
        lines.append(f"| {row['title']} | {settings} | " + " | ".join(cells) + " |")
    points, draws = results["points"]["test"], results["spec"]["draws"]
    return [*lines, "", f"Attacks that ignore the defence, {points:,} images, {draws} draws.", ""]


def _results(name: str, objective: str) -> dict[str, Any]:
    """The results of a spec, if they are about the model that ships."""
    path = RESULTS / name / "results.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    about = found["spec"]["models"].get(objective, {}).get("weights")
    return found if about == f"{found['spec']['data']['name']}-{objective}" else {}


def _in_255(value: float) -> str:
    return f"{255 * value:g}/255"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for shipped, folder in shipped_models().items():
        (folder / "README.md").write_text(card(shipped), encoding="utf-8")
        print(folder / "README.md")
