"""Put the trained models of runs into the package.

Weights are kept in 16 bits and measured as they are kept, on the whole test set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from mixup_inference import evaluate, from_pretrained, load_dataset, save_pretrained
from mixup_inference.datasets import LabelledImages, experiment_points
from mixup_inference.experiments import load_spec
from mixup_inference.training import LAST, Recipe
from mixup_inference.utils.io import read_header

SHIPPED = Path(__file__).parents[1] / "src" / "mixup_inference" / "models" / "shipped"


def ship(run: Path, shipped: Path = SHIPPED) -> None:
    """Put all models of a run into ``shipped``, as DATA-NAME."""
    for folder in sorted(path.parent for path in run.glob("models/*/model.safetensors")):
        model = from_pretrained(folder)
        card, history = model.card, read_header(folder / LAST)["history"]
        test = held_out(card["data"])
        name = f"{card['data']}-{folder.name.rpartition('-')[0]}"
        about = {
            "data": card["data"],
            "recipe": Recipe.of_header(card["recipe"]),
            "seed": card["seed"],
            # Epochs during which the machine did other things took longer.
            "training_seconds": round(len(history) * median(e["seconds"] for e in history)),
            "half": True,
        }
        if load_dataset(card["data"]).test is None:
            about["held_out"] = {"seed": card["seed"], "points": len(test)}
        full = evaluate(model, test.images, test.labels)
        save_pretrained(model, shipped / name, **about)
        half = evaluate(from_pretrained(shipped / name), test.images, test.labels)
        save_pretrained(model, shipped / name, **about, clean_accuracy=half)
        size = (shipped / name / "model.safetensors").stat().st_size
        print(f"{name}: {full} in 32 bits, {half} in 16 bits, {size / 1e6:.1f} MB")


def held_out(data: str) -> LabelledImages:
    """All images that the shipped models of a data set were not trained on."""
    dataset = load_dataset(data)
    return _points(data)["test"] if dataset.test is None else dataset.test


def trained_on(data: str) -> int:
    """How many images they were trained on."""
    return len(_points(data)["train"])


def _points(data: str) -> dict[str, LabelledImages]:
    """The points of the spec that trains them, all of its held-out ones together."""
    spec = load_spec(f"{data}-training")
    sizes = {"test": spec.data.test + spec.data.tuning + spec.data.calibration}
    return experiment_points(load_dataset(data), sizes, seed=spec.seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    for run in parser.parse_args().runs:
        ship(run)
