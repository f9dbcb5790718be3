"""Synthetic results of adaptive attacks."""

from __future__ import annotations

import base64
import io
import json

from PIL import Image

from mixup_inference.evaluation import Accuracy
from mixup_inference.metrics.accuracy import cell_entry

NASTY = "<i>M</i> | $x_{$ & co"
POINTS, REPEATS = 200, 5
#: Group, title, robust accuracy of the base, of MI-OL and of another randomised defence.
ATTACKS = (
    ("eot", "EOT-PGD-50", 0.04, 0.05, 0.26),
    ("oblivious", "oblivious PGD-50", 0.05, 0.46, 0.40),
    ("transfer", "transfer", 0.30, 0.52, 0.50),
    ("paper", "paper PGD-50", None, 0.21, None),
    ("official", "official PGD-50", None, 0.38, None),
    ("eot", "APGD-DLR", 0.035, 0.045, 0.22),
    ("black-box", "Square-1000", 0.20, 0.31, 0.41),
    ("frozen", "EOT-PGD-50, frozen", None, 0.01, 0.12),
)


def robust(accuracy, any_draw=None):
    low, high = max(0.0, accuracy - 0.03), min(1.0, accuracy + 0.035)
    worse = accuracy * 0.8 if any_draw is None else any_draw
    least = {"accuracy": worse, "low": max(0.0, worse - 0.03), "high": worse + 0.03}
    return {"accuracy": accuracy, "low": low, "high": high, "points": POINTS,
            "repeats": REPEATS, "any_draw": least}  # fmt: skip


def attack(group, title, accuracy, cost=550.0):
    return {"title": title, "attack": "pgd", "group": group, "robust": robust(accuracy),
            "settings": {"steps": 50, "step": 0.02}, "loss": 2.31, "linf": 0.15, "l2": 1.2,
            "forward": cost, "backward": cost - 50, "seconds": 12.3, "trace": [1.2, 1.5, 2.31],
            **({"surrogates": ["erm", NASTY]} if group == "transfer" else {})}  # fmt: skip


def checks(*passed):
    names = ("loss rises with steps", "more steps do not help the defender", "eps = 1 breaks all")
    return [
        {"name": name, "passed": went, "detail": f"the mean loss goes from 1.21 to {n + 3}.45."}
        for n, (name, went) in enumerate(zip(names, passed, strict=True))
    ]


def interval(difference, low, high):
    return {"difference": difference, "low": low, "high": high}


def row(title, which, base=None, versus=None, went=(True, True, True)):
    found = [attack(group, name, value[which]) for group, name, *value in ATTACKS
             if value[which] is not None]  # fmt: skip
    worst = min(a["robust"]["accuracy"] for a in found if a["group"] != "frozen")
    return {
        "title": title, "model": "mixup", "base": base, "defense": "mi-ol" if base else "none",
        "settings": {"lam": 0.55} if base else {}, "clean": robust(0.95), "attacks": found,
        "worst": {"robust": robust(worst), "choice": {"EOT-PGD-50": 120, "APGD-DLR": 80}},
        "versus_base": versus and interval(*versus),
        "checks": checks(*went),
    }  # fmt: skip


def image(shift, mode="RGB"):
    out = io.BytesIO()
    fading = Image.linear_gradient("L").resize((8, 8)).convert(mode)
    fading.point(lambda value: (value + shift) % 256).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()


def example(point):
    answers = {"clean": ("<b>cat</b>", 0.93), "adversarial": ("dog $1", 0.71)}
    shown = {key: {"image": image(40 * n + point), "predicted": word, "confidence": sure}
             for n, (key, (word, sure)) in enumerate(answers.items())}  # fmt: skip
    return {"point": point, "label": "<b>cat</b>", "perturbation": image(80), **shown}


def detector():
    def share(correct, total=POINTS):
        return cell_entry(Accuracy(correct, total))

    def found(title, wrong, detected, accuracy, auc):
        low, high = (None, None) if auc is None else (auc - 0.03, auc + 0.03)
        return {"title": title, "wrong": share(wrong), "robust": robust(accuracy), "auc": auc,
                "detected": detected and share(*detected), "low": low, "high": high}  # fmt: skip

    attacks = [found("PGD-50 (ignores the detector)", 190, (150, 190), 0.8, 0.873),
               found("detector-aware", 180, (9, 180), 0.145, 0.412),
               found("no attack", 0, None, 1.0, None)]  # fmt: skip
    return {"title": f"{NASTY}: MI-PL as a detector", "model": "mixup", "lam": 0.5, "rate": 0.05,
            "threshold": 0.31, "false_positives": share(9), "attacks": attacks}  # fmt: skip


def curve(*accuracies):
    return [{"samples": n, "robust": robust(a)}
            for n, a in zip((1, 2, 5, 10, 30), accuracies, strict=True)]  # fmt: skip


def adaptive_results():
    """Results of [adaptive]: a noise row that gains, an MI row that does not."""
    curves = {"eot": curve(0.2, 0.12, 0.08, 0.06, 0.05), "official": curve(*5 * [0.4]),
              "paper": curve(0.35, 0.3, 0.27, 0.24, 0.22)}  # fmt: skip
    return json.loads(json.dumps({
        "points": POINTS, "repeats": REPEATS, "eps": 0.15, "norm": "linf", "draws": 30,
        "rows": [
            row("Mixup", 0),
            row("Mixup + MI-OL", 1, "Mixup", (-0.004, -0.019, 0.011)),
            row(NASTY, 2, "Mixup", (0.17, 0.121, 0.2184), went=(True, False, None)),
        ],
        "samples": [{"title": title, "steps": 10, "curves": curves,
                     "base": {"title": "Mixup", "robust": robust(0.05)}}
                    for title in ("Mixup + MI-OL", NASTY)],
        "gallery": {"title": NASTY, "attack": "EOT-PGD-50", "eps": 0.0627,
                    "entries": [example(3), example(8)]},
        "detectors": [detector()],
    }))  # fmt: skip
