"""What is measured beside the table: linearity, the theory, detection, trade-offs, examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixup_inference.datasets import LabelledImages
from mixup_inference.defenses import MixupInference, images_at_once
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.evaluation.callback import Column
from mixup_inference.evaluation.detection import (
    Points,
    answer,
    measure_combined,
    measure_detection,
    middle,
)
from mixup_inference.evaluation.evaluate import evaluate, predicted_labels
from mixup_inference.evaluation.grid_search import (
    Trial,
    choose,
    grid_of,
    in_words,
    pareto,
    try_settings,
)
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.gallery import png, top
from mixup_inference.experiments.spec import RowSpec
from mixup_inference.metrics.accuracy import Accuracy, cell_entry
from mixup_inference.models.call import logits_of
from mixup_inference.pool import mix
from mixup_inference.theory import analyze, linearity

if TYPE_CHECKING:
    from mixup_inference.experiments.experiment import Experiment


def analyses(experiment: Experiment, *, tradeoffs: bool = True) -> dict[str, Any]:
    """Everything that the spec's [figures] asks for, by model; trade-offs if they are wanted."""
    models = experiment.spec.figure_models
    return {name: _of_model(experiment, name, tradeoffs=tradeoffs) for name in models}


def _of_model(experiment: Experiment, name: str, *, tradeoffs: bool) -> dict[str, Any]:
    figures, attack = experiment.spec.figures, experiment.spec.attack
    assert figures is not None
    assert attack is not None
    steps = min(attack.steps)
    common = {
        "model": experiment.models.identity(name),
        "points": experiment.data.hash_of("test"),
        "seed": experiment.spec.seed,
        **experiment.inference_identity,
    }
    attacks = {
        "attacks": [experiment.examples_identity(name, mode) for mode in attack.modes],
        "steps": steps,
        "draws": experiment.spec.draws,
        "batch_size": experiment.batch_size,
        "lams": list(figures.lams),
    }

    scores = {name: code_hash(SCORES[name].function) for name in SCORES}

    def part(what: str, identity: dict[str, Any], code: Any, compute: Callable[[], Any]) -> Any:
        code = {"code": code_hash(code, MixupInference, "experiments/analysis.py")}
        whole = {"what": what, **common, **identity, **code}
        return experiment.cached("analysis", f"{what} of {name}", whole, compute)

    out = {
        "steps": steps,
        "linearity": part(
            "linearity",
            {"pairs": figures.pairs},
            linearity,
            lambda: _linearity(experiment, name),
        ),
        "theory": part(
            "theory",
            attacks | {"used": figures.points},
            analyze,
            lambda: _theory(experiment, name, steps),
        ),
        "detection": part(
            "detection",
            attacks | {"calibration": experiment.data.hash_of("calibration"), "scores": scores},
            measure_detection,
            lambda: _detection(experiment, name, steps),
        ),
    }
    if tradeoffs and len(experiment.data.points["tuning"]):
        out["tradeoff"] = _tradeoff(experiment, name, steps)
    if figures.gallery:
        names = list(experiment.data.points["test"].class_names)
        identity = attacks | {"count": figures.gallery, "names": names}
        out["gallery"] = part(
            "gallery", identity, MixupInference, lambda: _gallery(experiment, name, steps)
        )
    return out


def _linearity(experiment: Experiment, name: str) -> Any:
    assert experiment.spec.figures is not None
    found = linearity(
        experiment.models[name],
        experiment.data.points["test"].pixels.to(experiment.device),
        pairs=experiment.spec.figures.pairs,
        seed=experiment.spec.seed,
        batch_size=experiment.batch_size,
    )
    return asdict(found)


def _attacked(experiment: Experiment, name: str, steps: int) -> dict[str, Tensor]:
    assert experiment.spec.attack is not None
    modes = experiment.spec.attack.modes
    return {mode: experiment.examples(name, mode)[f"PGD-{steps}"] for mode in modes}


def _theory(experiment: Experiment, name: str, steps: int) -> Any:
    """Both kinds of mixup inference, all ratios, all attacks."""
    spec, test = experiment.spec, experiment.data.points["test"]
    assert spec.figures is not None
    some = test.take(torch.arange(min(spec.figures.points, len(test))))
    entries = []
    attacked = _attacked(experiment, name, steps)
    with experiment.progress.task("theory", len(attacked) * 2 * len(spec.figures.lams)) as task:
        for mode, x_adv in attacked.items():
            if int(_turned(experiment, name, some, x_adv[: len(some)]).sum()) < 2:
                continue  # the attack fooled nobody: there is nothing to measure
            for kind in ("mi-pl", "mi-ol"):
                for lam in spec.figures.lams:
                    found = analyze(
                        experiment.models[name],
                        experiment.data.pool.to(experiment.device),
                        some.pixels.to(experiment.device),
                        x_adv[: len(some)].to(experiment.device),
                        some.labels,
                        kind=kind,
                        lam=lam,
                        draws=spec.draws,
                        seed=spec.seed,
                        index=some.index,
                        batch_size=images_at_once(some.images),
                    )
                    entries.append({"attack": mode, **asdict(found)})
                    task.advance()
    return entries


def _turned(experiment: Experiment, name: str, points: LabelledImages, x_adv: Tensor) -> Tensor:
    """Which points satisfy Eq. 2: the model has them right, and the attack turns them."""
    labels = partial(predicted_labels, experiment.models[name], batch_size=experiment.batch_size)
    return (labels(points.pixels) == points.labels) & (labels(x_adv) != points.labels)


def _detection(experiment: Experiment, name: str, steps: int) -> Any:
    spec, points = experiment.spec, experiment.data.points
    assert spec.figures is not None
    test, calibration = points["test"], points["calibration"]
    sets = {"clean": Points(test.pixels, test.index)}
    attacked = _attacked(experiment, name, steps)
    sets |= {mode: Points(x, test.index) for mode, x in attacked.items()}
    if len(calibration):
        sets["calibration"] = Points(calibration.pixels, calibration.index)
    answers = answer(
        experiment.models[name],
        experiment.data.pool,
        sets,
        lams=spec.figures.lams,
        draws=spec.draws,
        seed=spec.seed,
        engine=spec.engine,
        batch_size=experiment.batch_size,
        progress=experiment.progress,
    )
    lam = middle(spec.figures.lams)
    combined = measure_combined(answers, test.labels, list(attacked), lam=lam)
    return measure_detection(answers, list(attacked)) | {"combined": combined}


def _tradeoff(experiment: Experiment, name: str, steps: int) -> Any:
    """Every defence's grid on the tuning points."""
    assert experiment.spec.figures is not None
    out = {}
    for defense in experiment.spec.figures.defenses:
        _, trials = trials_of(experiment, name, defense, steps)
        out[defense] = [
            {
                "settings": trial.settings,
                "clean": cell_entry(trial.clean),
                "attacked": {mode: cell_entry(a) for mode, a in trial.attacked.items()},
                "robust": trial.robust,
                "on_front": on_front,
            }
            for trial, on_front in zip(trials, pareto(trials), strict=True)
        ]
    return out


def _gallery(experiment: Experiment, name: str, steps: int) -> Any:
    """A few test points: clean, perturbation, adversarial, mixed, with the model's answers.

    The first ones that the model has right and the attack turns, as mixup inference sees them in
    its first draw (MI-OL with the middle ratio).
    """
    spec, test = experiment.spec, experiment.data.points["test"]
    assert spec.figures is not None
    assert spec.attack is not None
    mode = spec.attack.modes[0]
    model, x_adv = experiment.models[name], experiment.examples(name, mode)[f"PGD-{steps}"]
    turned = _turned(experiment, name, test, x_adv)
    rows = torch.nonzero(turned).flatten()[: spec.figures.gallery]
    if len(rows) == 0:
        return []
    lam = middle(spec.figures.lams)
    inference = MixupInference(
        model, experiment.data.pool, lam=lam, draws=spec.draws, seed=spec.seed
    ).to(experiment.device)
    clean, attacked = test.pixels[rows], x_adv[rows]
    with torch.no_grad():
        device = experiment.device
        index = test.index[rows]
        before, after = inference.log_probs(attacked.to(device), index=index, stream="gallery")
        plain = logits_of(model, clean.to(device)).log_softmax(1)
        # The first of the draws that the answer above is the mean of.
        draws = inference.numbers(before, index, "gallery", draws=1)
        _, numbers = inference.partners(before.argmax(1), draws)
        partner = experiment.data.pool.pixels(numbers[:, 0]).cpu()
        mixed = mix(attacked, partner, lam)
        seen = logits_of(model, mixed.to(device)).log_softmax(1)
    names = test.class_names
    entries = []
    for i, row in enumerate(rows.tolist()):
        shown = {"clean": (clean, plain), "adversarial": (attacked, before), "mixed": (mixed, seen)}
        entry: dict[str, Any] = {
            "point": int(test.index[row]),
            "label": names[int(test.labels[row])],
            "lam": lam,
            "attack": mode,
            "perturbation": png(0.5 + (attacked[i] - clean[i]) / (2 * spec.attack.eps)),
            "partner": {"image": png(partner[i])},
            "defended": top(after[i], names),
        }
        for key, (images, log_p) in shown.items():
            entry[key] = {"image": png(images[i]), **top(log_p[i], names)}
        entries.append(entry)
    return entries


@dataclass(frozen=True)
class Tuned:
    """What was chosen, what it was chosen from, and what it came to on points not chosen on."""

    chosen: Trial
    trials: list[Trial]
    base: Accuracy  # the undefended model, clean, on the tuning points
    rows: tuple[RowSpec, RowSpec]  # bare and defended
    reported: list[list[Accuracy]]  # of the two rows on the test points: clean, then attacked

    @property
    def settings(self) -> dict[str, Any]:
        """Those that were chosen."""
        return self.chosen.settings


def tune(experiment: Experiment, name: str, defense: str, *, loss: float = 0.02) -> Tuned:
    """Find the settings with the most attacked accuracy that lose at most ``loss`` clean."""
    spec, tuning = experiment.spec, experiment.data.points["tuning"]
    if name not in spec.models:
        raise unknown_name("model", name, spec.models)
    grid_of(defense)
    if spec.attack is None or len(tuning) == 0:
        raise InputError("tuning needs an attack and tuning points ('tuning' in the data table).")
    steps = min(spec.attack.steps)
    experiment.train([name])
    base, trials = trials_of(experiment, name, defense, steps)
    best = choose(trials, base, loss=loss)
    title = f"{name} + {defense} ({in_words(best.settings)})"
    rows = (
        RowSpec(title=name, model=name),
        RowSpec(title=title, model=name, defense=defense, **best.settings),
    )
    columns = [Column("clean"), *(Column(mode, steps) for mode in spec.attack.modes)]
    reported = [[experiment.cell(row, column).accuracy for column in columns] for row in rows]
    return Tuned(best, trials, base, rows, reported)


def trials_of(
    experiment: Experiment, name: str, defense: str, steps: int
) -> tuple[Accuracy, list[Trial]]:
    """The undefended model and the whole grid on the tuning points, kept like any other part."""
    spec, tuning = experiment.spec, experiment.data.points["tuning"]
    assert spec.attack is not None
    modes: tuple[str, ...] = spec.attack.modes
    identity = {
        "attacks": [experiment.examples_identity(name, mode, "tuning") for mode in modes],
        "steps": steps,
        "grid": grid_of(defense),
        "draws": spec.draws,
        "seed": spec.seed,
        "batch_size": experiment.batch_size,
        "code": code_hash(try_settings),
        **experiment.defense_identity(defense, {}),
    }

    def compute() -> dict[str, Any]:
        model = experiment.models[name]
        trials = try_settings(
            model,
            experiment.data.pool,
            defense,
            tuning.pixels,
            {mode: experiment.examples(name, mode, "tuning")[f"PGD-{steps}"] for mode in modes},
            tuning.labels,
            index=tuning.index,
            draws=spec.draws,
            seed=spec.seed,
            engine=spec.engine,
            batch_size=experiment.batch_size,
            progress=experiment.progress,
        )
        base = evaluate(model, tuning.pixels, tuning.labels, batch_size=experiment.batch_size)
        return {"base": asdict(base), "trials": [asdict(trial) for trial in trials]}

    found = experiment.cached("tuning", f"grid of {defense} on {name}", identity, compute)
    trials = [
        Trial(
            {k: tuple(v) if isinstance(v, list) else v for k, v in trial["settings"].items()},
            Accuracy(**trial["clean"]),
            {mode: Accuracy(**counts) for mode, counts in trial["attacked"].items()},
        )
        for trial in found["trials"]
    ]
    return Accuracy(**found["base"]), trials
