"""The command `guard fit`: a model and its data in, a guard's folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from mixup_inference.cli.console import say
from mixup_inference.cli.evaluate_options import make_spec, number
from mixup_inference.cli.guard import TESTED, Fit
from mixup_inference.cli.options import OneModel
from mixup_inference.datasets import EMBEDDED
from mixup_inference.experiments import check_spec
from mixup_inference.experiments.data import ExperimentData
from mixup_inference.experiments.models import load_model
from mixup_inference.guard import Guard, Settings
from mixup_inference.guard.tuning import tuned
from mixup_inference.pool import Pool
from mixup_inference.reporting.formatting import percent
from mixup_inference.utils.progress import SILENT, RichProgress

#: The shipped model of the embedded data, and what attacks on it may change.
SHIPPED, EPS = f"{EMBEDDED}-mixup", 0.15


def fit_guard(what: Fit, output: Path, data_root: Path | None, *, quiet: bool) -> None:
    """Make a guard as the options say, and write it."""
    console = Console()
    progress = SILENT if quiet else RichProgress(console if console.is_terminal else None)
    spec = _spec(what)
    data = ExperimentData(spec, data_root, progress)
    network, weights = spec.network_of("model"), spec.models["model"].weights
    model, train = load_model(network, weights, data.points["train"]), data.points["train"]
    eps = EPS if what.data == EMBEDDED and what.eps == Fit.eps else number(what.eps, "--eps")
    pool = Pool(train.images, train.labels, classes=train.classes)
    settings = _settings(what)
    if what.tune:
        points = data.points["tuning"]
        settings = tuned(
            model, pool, points.images, points.labels,
            eps=eps, settings=settings, progress=progress,
        )  # fmt: skip
    clean = data.points["calibration"]
    guard = Guard.fit(
        model,
        pool,
        clean.images,
        clean.labels,
        false_positive_rate=what.false_positive_rate,
        per_class=what.per_class or None,
        class_names=train.class_names,
        data=what.data,
        **settings.model_dump(),
    )
    if what.evaluate:
        test = data.points["test"]
        guard.evaluate(test.images, test.labels, eps=eps, progress=progress)
    folder = guard.save(output)
    if not quiet:
        _report(guard, folder)


def _spec(what: Fit) -> Any:
    """The data and the model as `evaluate` describes them, with points to calibrate and tune on."""
    ours = what.data == EMBEDDED and what.weights is None and what.model is None
    one = OneModel(
        data=what.data,
        model=what.model,
        weights=SHIPPED if ours else what.weights,
        mean=what.mean,
        std=what.std,
        size=what.size,
        defense="none",
        attack=("none",),
        points=TESTED,
        seed=what.seed,
    )
    spec = make_spec(one, None, tuning=TESTED if what.tune else 0)
    document = spec.model_dump(exclude_none=True)
    document["data"] |= {"calibration": what.points}
    return check_spec(document, source="", allow_code=True)  # typing its name allows it


def _settings(what: Fit) -> Settings:
    given = {
        name: value
        for name in ("lam_detect", "lam_defend", "draws", "seed")
        if (value := getattr(what, name)) is not None
    }
    return Settings(**given) if what.preset is None else Settings.of_preset(what.preset, **given)


def _report(guard: Guard, folder: Path) -> None:
    found, settings = guard.calibration, guard.settings
    say(
        f"Threshold {found.threshold:.4f} (MI-PL, lambda {settings.lam_detect:g}), calibrated on "
        f"{found.points:,} clean images: {percent(found.low)}% to {percent(found.high)}% of new "
        "clean images will be flagged (95% interval)."
    )
    if (attacked := guard.evaluation) is not None:
        say(
            f"Attacked with eps {attacked.eps:.4g}: an attack that ignores the guard is flagged in "
            f"{percent(attacked.oblivious.flagged)}% of {attacked.points} images, and one that "
            f"knows it evades the guard in {percent(attacked.adaptive.evaded)}%."
        )
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(f"\n{folder} ({size / 1e6:.1f} MB); its card is {folder / 'README.md'}. Next:")
    for command in (f"predict {folder} PICTURE...", f"serve {folder}"):
        say(f"  mixup-inference guard {command}")
