"""Measure how much of a perturbation is needed to fool the models of a run.

Mixup inference passes on only a part lam of a perturbation. This measures the undefended models
with such parts of the run's attacks, in place: what is wrong already with half of a perturbation,
shrinking it by half cannot mend. Writes results/NAME/shrinkage.json; models that the spec does not
have stay there as they were measured.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

from mixup_inference import evaluate
from mixup_inference.experiments import Experiment, load_spec
from mixup_inference.metrics.accuracy import cell_entry

RESULTS = Path(__file__).parents[1] / "results"
PARTS = (1.0, 0.75, 0.5, 0.25, 0.125)
STEPS = 10


def shrink(experiment: Experiment) -> list[dict[str, object]]:
    """Accuracy of every model of a run on clean points plus parts of their perturbations."""
    assert experiment.spec.attack is not None
    test, rows = experiment.data.points["test"], []
    for name, mode in product(experiment.spec.used_models, experiment.spec.attack.modes):
        model, clean = experiment.models[name], test.pixels
        change = experiment.examples(name, mode)[f"PGD-{STEPS}"] - clean
        for part in PARTS:
            found = evaluate(model, clean + part * change, test.labels)
            rows.append({"model": name, "attack": mode, "part": part, **cell_entry(found)})
    return rows


def write(experiment: Experiment, folder: Path) -> Path:
    """Write shrinkage.json; models that the spec does not have stay as they were measured."""
    path = folder / experiment.spec.name / "shrinkage.json"
    before = json.loads(path.read_text()) if path.exists() else []
    others = [entry for entry in before if entry["model"] not in experiment.spec.used_models]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(others + shrink(experiment), indent=1) + "\n")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="name of a shipped experiment, or path of a TOML file")
    parser.add_argument("run", type=Path, help="the folder of its run")
    arguments = parser.parse_args()
    print(write(Experiment(load_spec(arguments.spec), arguments.run), RESULTS))
