"""The best settings of a defence for a model: chosen on the tuning points, reported on the test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.evaluation.accuracy import Accuracy, evaluate
from mixup_inference.evaluation.experiment import Experiment
from mixup_inference.evaluation.listener import Column
from mixup_inference.evaluation.spec import RowSpec
from mixup_inference.evaluation.tuning import Trial, choose, grid_of, in_words, try_settings


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
    spec, tuning = experiment.spec, experiment.points["tuning"]
    if name not in spec.models:
        raise unknown_name("model", name, spec.models)
    grid_of(defense)
    if spec.attack is None or len(tuning) == 0:
        raise InputError("tuning needs an attack and tuning points ('tuning' in the data table).")
    steps = min(spec.attack.steps)
    base, trials = trials_of(experiment, name, defense, steps)
    best = choose(trials, base, loss=loss)
    title = f"{name} + {defense} ({in_words(best.settings)})"
    rows = (
        RowSpec(title=name, model=name),
        RowSpec(title=title, model=name, defense=defense, **best.settings),
    )
    columns = [Column("clean"), *(Column(mode, steps) for mode in spec.attack.modes)]
    reported = [[experiment.cell(row, column) for column in columns] for row in rows]
    return Tuned(best, trials, base, rows, reported)


def trials_of(
    experiment: Experiment, name: str, defense: str, steps: int
) -> tuple[Accuracy, list[Trial]]:
    """The undefended model and the whole grid on the tuning points, kept like any other part."""
    spec, tuning = experiment.spec, experiment.points["tuning"]
    assert spec.attack is not None
    modes: tuple[str, ...] = spec.attack.modes
    identity = {
        "attacks": [experiment.examples_identity(name, mode, "tuning") for mode in modes],
        "steps": steps,
        "defense": defense,
        "grid": grid_of(defense),
        "draws": spec.draws,
        "seed": spec.seed,
        "batch_size": experiment.batch_size,
        **experiment.defense_identity,
    }

    def compute() -> dict[str, Any]:
        model = experiment.model(name)
        trials = try_settings(
            model,
            experiment.pool,
            defense,
            tuning.pixels,
            {mode: experiment.examples(name, mode, "tuning")[steps] for mode in modes},
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

    found = experiment.part("tuning", f"grid of {defense} on {name}", identity, compute)
    trials = [
        Trial(
            {k: tuple(v) if isinstance(v, list) else v for k, v in trial["settings"].items()},
            Accuracy(**trial["clean"]),
            {mode: Accuracy(**counts) for mode, counts in trial["attacked"].items()},
        )
        for trial in found["trials"]
    ]
    return Accuracy(**found["base"]), trials
