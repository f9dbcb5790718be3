"""What is measured beside the table: linearity, the theory, detection, trade-offs, examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixup_inference.datasets import LabelledImages
from mixup_inference.defenses import MixupInference, images_at_once
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.evaluation import detection, grid_search
from mixup_inference.evaluation.callback import Column
from mixup_inference.evaluation.evaluate import evaluate, predicted_labels
from mixup_inference.evaluation.grid_search import Trial, grid_of
from mixup_inference.experiments.cache import Compute, Identity
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import first
from mixup_inference.experiments.gallery import example, png, top
from mixup_inference.experiments.spec import RowSpec
from mixup_inference.metrics.accuracy import Accuracy, cell_entry
from mixup_inference.models.call import logits_of
from mixup_inference.pool import mix
from mixup_inference.theory import analyze, linearity
from mixup_inference.theory.formulas import KINDS

if TYPE_CHECKING:
    from mixup_inference.experiments.experiment import Experiment


def analyses(experiment: Experiment, *, tradeoffs: bool = True) -> dict[str, Any]:
    """Everything that the spec's [figures] asks for, by model; trade-offs if they are wanted."""
    models = experiment.spec.figure_models
    return {name: ModelAnalysis(experiment, name).all(tradeoffs=tradeoffs) for name in models}


class ModelAnalysis:
    """What the spec's [figures] asks for of one model."""

    def __init__(self, experiment: Experiment, name: str) -> None:
        figures, attack = experiment.spec.figures, experiment.spec.attack
        assert figures is not None
        assert attack is not None
        self.experiment, self.name, self.model = experiment, name, experiment.models[name]
        self.figures, self.attack, self.steps = figures, attack, min(attack.steps)
        self.test, self.lam = experiment.data.points["test"], detection.middle(figures.lams)

    def all(self, *, tradeoffs: bool) -> dict[str, Any]:
        """Every part, as results.json has it."""
        experiment, figures = self.experiment, self.figures
        modes = self.attack.modes
        attacks = {
            "attacks": [experiment.examples_identity(self.name, mode) for mode in modes],
            "steps": self.steps,
            "lams": list(figures.lams),
        }
        detected = attacks | {
            "calibration": experiment.data.hash_of("calibration"),
            "scores": {name: code_hash(*SCORES[name].functions) for name in SCORES},
        }
        shown = attacks | {"count": figures.gallery, "names": list(self.test.class_names)}
        used, pairs = attacks | {"used": figures.points}, {"pairs": figures.pairs}
        measure = detection.measure_detection
        out = {
            "steps": self.steps,
            "linearity": self._part("linearity", pairs, linearity, self._linearity),
            "theory": self._part("theory", used, analyze, self._theory),
            "detection": self._part("detection", detected, measure, self._detection),
        }
        if tradeoffs and len(experiment.data.points["tuning"]):
            out["tradeoff"] = {kind: self._tradeoff(kind) for kind in figures.defenses}
        if figures.gallery:
            out["gallery"] = self._part("gallery", shown, "experiments.gallery", self._gallery)
        return out

    def _part(self, what: str, own: Identity, code: Any, compute: Compute) -> Any:
        """A part, from the folder if it is there; ``own`` is its own share of its identity."""
        identity = {
            "what": what,
            "model": self.experiment.models.identity(self.name),
            "points": self.experiment.data.hash_of("test"),
            **self.experiment.inference_identity,
            **own,
            "code": code_hash(code, MixupInference, "experiments/analysis.py"),
        }
        return self.experiment.cached("analysis", f"{what} of {self.name}", identity, compute)

    def _linearity(self) -> Any:
        """How linear the model is between test points (Eq. 3)."""
        images = self.test.pixels.to(self.experiment.device)
        seed, size = self.experiment.spec.seed, self.experiment.data.batch_size
        pairs = self.figures.pairs
        return asdict(linearity(self.model, images, pairs=pairs, seed=seed, batch_size=size))

    def _attacked(self) -> dict[str, Tensor]:
        """The adversarial test points, by the attack's mode."""
        examples = partial(self.experiment.examples, self.name)
        return {mode: examples(mode)[f"PGD-{self.steps}"] for mode in self.attack.modes}

    def _turned(self, points: LabelledImages, x_adv: Tensor) -> Tensor:
        """Which points satisfy Eq. 2: the model has them right, and the attack turns them."""
        labels = partial(predicted_labels, self.model, batch_size=self.experiment.data.batch_size)
        before, after = labels(points.pixels), labels(x_adv)
        return (before == points.labels) & (after != points.labels)

    def _theory(self) -> Any:
        """Section 3.2 under both kinds of mixup inference, all ratios, all attacks."""
        experiment, spec = self.experiment, self.experiment.spec
        some, attacked = first(self.test, self.figures.points), self._attacked()
        kinds = list(product(KINDS, self.figures.lams))
        entries = []
        with experiment.progress.task("theory", len(attacked) * len(kinds)) as task:
            for mode, examples in attacked.items():
                x_adv = examples[: len(some)]
                if int(self._turned(some, x_adv).sum()) < 2:
                    continue  # the attack fooled nobody: there is nothing to measure
                for kind, lam in kinds:
                    found = analyze(
                        self.model,
                        experiment.data.pool.to(experiment.device),
                        some.pixels.to(experiment.device),
                        x_adv.to(experiment.device),
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

    def _detection(self) -> Any:
        """Every detection score on every attack, and MI-Combined."""
        experiment, attacked = self.experiment, self._attacked()
        sets = {"clean": self.test}
        sets |= {mode: replace(self.test, images=x) for mode, x in attacked.items()}
        calibration = experiment.data.points["calibration"]
        if len(calibration):
            sets["calibration"] = calibration
        answers = detection.answer(
            self.model,
            experiment.data.pool,
            sets,
            lams=self.figures.lams,
            batch_size=experiment.data.batch_size,
            progress=experiment.progress,
            **experiment.drawing,
        )
        modes, labels = list(attacked), self.test.labels
        combined = detection.measure_combined(answers, labels, modes, lam=self.lam)
        return detection.measure_detection(answers, modes) | {"combined": combined}

    def _tradeoff(self, defense: str) -> list[dict[str, Any]]:
        """A defence's grid on the tuning points."""
        _, trials = trials_of(self.experiment, self.name, defense, self.steps)
        return [
            {
                "settings": trial.settings,
                "clean": cell_entry(trial.clean),
                "attacked": {mode: cell_entry(a) for mode, a in trial.attacked.items()},
                "robust": trial.robust,
                "on_front": on_front,
            }
            for trial, on_front in zip(trials, grid_search.pareto(trials), strict=True)
        ]

    def _gallery(self) -> list[dict[str, Any]]:
        """A few test points: clean, perturbation, adversarial, mixed, with the model's answers.

        The first ones that the model has right and the attack turns, as mixup inference sees them
        in its first draw (MI-OL with the middle ratio).
        """
        experiment, spec, mode = self.experiment, self.experiment.spec, self.attack.modes[0]
        x_adv = experiment.examples(self.name, mode)[f"PGD-{self.steps}"]
        rows = torch.nonzero(self._turned(self.test, x_adv)).flatten()[: self.figures.gallery]
        if len(rows) == 0:
            return []
        some, attacked = self.test.take(rows), x_adv[rows]
        pool, device, lam = experiment.data.pool, experiment.device, self.lam
        inference = MixupInference(self.model, pool, lam=lam, draws=spec.draws, seed=spec.seed)

        def answer(images: Tensor) -> Tensor:
            return logits_of(self.model, images.to(device)).log_softmax(1)

        with torch.no_grad():
            x, stream = attacked.to(device), "gallery"
            before, after = inference.to(device).log_probs(x, index=some.index, stream=stream)
            # The first of the draws that the answer above is the mean of.
            draws = inference.numbers(before, some.index, stream, draws=1)
            _, numbers = inference.partners(before.argmax(1), draws)
            partner = pool.pixels(numbers[:, 0]).cpu()
            mixed = mix(attacked, partner, lam)
            shown = {
                "clean": (some.pixels, answer(some.pixels)),
                "adversarial": (attacked, before),
                "mixed": (mixed, answer(mixed)),
            }
        return [
            {
                "lam": lam,
                "attack": mode,
                "partner": {"image": png(partner[i])},
                "defended": top(after[i], some.class_names),
                **example(some, i, shown, eps=self.attack.eps),
            }
            for i in range(len(some))
        ]


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
    best = grid_search.choose(trials, base, loss=loss)
    title = f"{name} + {defense} ({grid_search.in_words(best.settings)})"
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
    modes, grid = spec.attack.modes, grid_of(defense)
    identity = {
        "attacks": [experiment.examples_identity(name, mode, "tuning") for mode in modes],
        "steps": steps,
        "grid": grid,
        "code": code_hash(grid_search.try_settings),
        **experiment.defense_identity(defense, {}),
    }

    def compute() -> dict[str, Any]:
        model, size = experiment.models[name], experiment.data.batch_size
        trials = grid_search.try_settings(
            model,
            experiment.data.pool,
            defense,
            tuning.pixels,
            {mode: experiment.examples(name, mode, "tuning")[f"PGD-{steps}"] for mode in modes},
            tuning.labels,
            index=tuning.index,
            batch_size=size,
            progress=experiment.progress,
            **experiment.drawing,
        )
        base = evaluate(model, tuning.pixels, tuning.labels, batch_size=size)
        return {"base": asdict(base), "trials": [asdict(trial) for trial in trials]}

    found = experiment.cached("tuning", f"grid of {defense} on {name}", identity, compute)
    trials = [
        Trial(
            settings,
            Accuracy(**trial["clean"]),
            {mode: Accuracy(**counts) for mode, counts in trial["attacked"].items()},
        )
        for settings, trial in zip(grid, found["trials"], strict=True)
    ]
    return Accuracy(**found["base"]), trials
