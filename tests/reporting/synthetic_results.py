"""Small synthetic results with chosen numbers."""

from __future__ import annotations

import copy

import torch

from mixup_inference.metrics.accuracy import Accuracy, as_bits, cell_entry

COLUMNS = ["clean", "untargeted PGD-10", "targeted PGD-10"]


def row(model, defense, *correct, total=500, passes=1.0):
    """A row with this many correct points in each column, or with these points (bools)."""
    cells = {c: cell(right, total) for c, right in zip(COLUMNS, correct, strict=True)}
    title = model if defense == "none" else f"{model} + {defense}"
    return {"title": title, "group": model, "model": model, "defense": defense,
            "passes_per_image": passes, "cells": cells}  # fmt: skip


def cell(right, total=500):
    if isinstance(right, int):
        return cell_entry(Accuracy(right, total))
    return cell_entry(Accuracy(int(right.sum()), len(right))) | {"right": as_bits(right)}


def first(count, total=500, *, skip=0):
    """A bool per point: ``count`` points are correct after the first ``skip``."""
    index = torch.arange(total)
    return (skip <= index) & (index < skip + count)


def results(*rows, **more):
    return {
        "schema": 1,
        "columns": COLUMNS,
        "rows": list(rows),
        "points": {"test": 500},
        "spec": {
            "data": {"name": "digits"},
            "models": {name: {"objective": name} for name in ("mixup", "erm", "at", "iat")},
            "attack": {"modes": ["untargeted", "targeted"], "steps": [10]},
        },
        **more,
    }


def figures(mixup=0.05, erm=0.15, pl=0.8, confidence=0.4, rise=0.3, fall=-0.4, count=100):
    def estimate(mean):
        return {"mean": mean, "se": 0.01}

    def score(name, auc):
        lam = None if name == "low confidence" else 0.5
        return {"score": name, "lam": lam, "attack": "untargeted", "auc": auc,
                "low": auc - 0.03, "high": auc + 0.03}  # fmt: skip

    theory = [
        {
            "kind": "mi-ol",
            "lam": lam,
            "attack": "untargeted",
            "adversarial": {"delta_y": estimate(rise), "delta_y_hat": estimate(fall)},
            "ric": {"points": 90, "total": 100},
            "counts": {"used": count},
            "y_hat": {
                "input_transfer": estimate(0.2),
                "perturbation_shrinkage": estimate(0.001),
            },
        }
        for lam in (0.4, 0.5)
    ]
    detection = [score("MI-PL", pl), score("MI-OL", 0.7), score("low confidence", confidence)]
    common = {"detection": {"scores": detection}, "theory": theory}
    return {
        "mixup": {"linearity": {"overall": estimate(mixup), "pairs": 500}, **common},
        "erm": {"linearity": {"overall": estimate(erm), "pairs": 500}, **copy.deepcopy(common)},
    }


BARE = row("mixup", "none", 490, 5, 20)
HELPS = row("mixup", "mi-ol", 480, 200, 350, passes=31.0)
