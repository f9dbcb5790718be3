"""Agreement with the label of very many draws, for each way to draw and to stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference import MixupDetector, MixupInference, Pool, create_model, pgd, train
from mixup_inference.datasets import load_dataset, split
from mixup_inference.training import Recipe

LAM = 0.5
COUNTS = (3, 6, 9, 10, 18, 30, 60)
MANY = 3000
#: How often each way draws anew for all points; agreement is the mean.
STREAMS = range(6)
WAYS: dict[str, dict[str, Any]] = {
    "independent": {},
    "stratified": {"sampling": "stratified"},
    "control variate": {"control_variate": True},
    "both": {"sampling": "stratified", "control_variate": True},
}


def scene() -> tuple[nn.Module, Pool, dict[str, Tensor], Tensor]:
    """A mixup-trained network on the embedded digits, its pool, and points clean and attacked."""
    parts = split(load_dataset("digits").train, {"test": 300}, seed=0, rest="train")
    model = create_model("small_cnn", 10, channels=1, width=24)
    recipe = Recipe(epochs=60, batch_size=64, lr=0.1, schedule="one-cycle", weight_decay=5e-4)
    train(model, parts["train"].images, parts["train"].labels, recipe)
    x, y = parts["test"].pixels, parts["test"].labels
    attacked = pgd(model.eval(), x, y, eps=0.15, step=0.0375, steps=10)
    pool = Pool(parts["train"].images, parts["train"].labels)
    return model, pool, {"clean": x, "attacked": attacked}, y


def agreement() -> dict[str, Any]:
    """For clean and attacked points: agreement by draws and way; and what stopping early gives."""
    model, pool, points, y = scene()
    index = torch.arange(len(y))
    out: dict[str, Any] = {}
    for kind, x in points.items():
        sure = MixupInference(model, pool, lam=LAM, draws=MANY, **WAYS["both"])
        truth = sure(x, index=index, stream="truth").argmax(1)

        def share(mi: MixupInference, x: Tensor = x, truth: Tensor = truth) -> float:
            return _share(
                mi(x, index=index, stream=stream).argmax(1) == truth for stream in STREAMS
            )

        curves = {
            way: {
                n: share(MixupInference(model, pool, lam=LAM, draws=n, **options)) for n in COUNTS
            }
            for way, options in WAYS.items()
        }
        out[kind] = {"curves": curves, "stopping": _stopping(model, pool, x, y, truth, share)}
        out[kind]["detecting"] = _detecting(model, pool, x, points["clean"])
    return out


def _share(right: Iterable[Tensor]) -> float:
    """How many of all entries are true."""
    return float(torch.stack(list(right)).double().mean())


def _detecting(model: nn.Module, pool: Pool, x: Tensor, clean: Tensor) -> list[dict[str, Any]]:
    """A detector that stops beside one with the fixed number of draws that costs as much."""
    index, entries = torch.arange(len(x)), []
    sure = MixupDetector(model, pool, lam=LAM, draws=MANY)
    threshold = sure.calibrate(clean, false_positive_rate=0.2, index=index)
    truth = sure.detect(x, index=index, stream="truth")

    def detector(**options: Any) -> MixupDetector:
        return MixupDetector(model, pool, lam=LAM, threshold=threshold, **options)

    for options in (
        {"stop": "exact", "draws": 30},
        {"stop": "confident", "draws": 300, "error": 0.2},
        {"stop": "confident", "draws": 300, "error": 0.05},
        {"stop": "confident", "draws": 300, "error": 0.05, **WAYS["both"]},
    ):
        rule = detector(**options)
        flags, used = zip(*(rule.decide(x, index=index, stream=n) for n in STREAMS), strict=True)
        mean = float(torch.stack(used).double().mean())
        same = {key: value for key, value in options.items() if key in WAYS["both"]}
        fixed = detector(draws=max(1, round(mean)), **same)
        entries.append(
            {
                "options": options,
                "mean_draws": mean,
                "agreement": _share(flag == truth for flag in flags),
                "agreement_fixed": _share(
                    fixed.detect(x, index=index, stream=n) == truth for n in STREAMS
                ),
            }
        )
    return entries


def _stopping(
    model: nn.Module, pool: Pool, x: Tensor, y: Tensor, truth: Tensor, share: Any
) -> list[dict[str, Any]]:
    """Each rule beside the fixed number of draws that costs as much."""
    index, entries = torch.arange(len(y)), []
    rules: list[dict[str, Any]] = [
        {"stop": "exact", "draws": 30},
        {"stop": "exact", "draws": 30, **WAYS["both"]},
        {"stop": "confident", "draws": 300, "error": 0.2},
        {"stop": "confident", "draws": 300, "error": 0.05},
        {"stop": "confident", "draws": 300, "error": 0.05, **WAYS["both"]},
    ]
    for options in rules:
        rule = MixupInference(model, pool, lam=LAM, **options)
        log_p, used = zip(*(rule.decide(x, index=index, stream=n) for n in STREAMS), strict=True)
        labels = [each.argmax(1) for each in log_p]
        mean = float(torch.stack(used).double().mean())
        same = {key: value for key, value in options.items() if key in WAYS["both"]}
        fixed = MixupInference(model, pool, lam=LAM, draws=max(1, round(mean)), **same)
        entries.append(
            {
                "options": options,
                "mean_draws": mean,
                "agreement": _share(label == truth for label in labels),
                "agreement_fixed": share(fixed),
                "accuracy": _share(label == y for label in labels),
                "accuracy_many": float((truth == y).double().mean()),
            }
        )
    return entries
