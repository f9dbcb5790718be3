"""Put trained models into the package: `python results/ship.py runs/cifar10-training`.

Weights are kept in 16 bits and measured as they are kept, on the whole test set.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from mixup_inference import evaluate, from_pretrained, load_dataset, save_pretrained
from mixup_inference.training import LAST, Recipe
from mixup_inference.utils.io import read_header

SHIPPED = Path(__file__).parent.parent / "src" / "mixup_inference" / "models" / "shipped"


def ship(run: Path) -> None:
    """All models of a run, as DATA-NAME."""
    for folder in sorted(path.parent for path in run.glob("models/*/model.safetensors")):
        model = from_pretrained(folder)
        card, history = model.card, read_header(folder / LAST)["history"]
        test = load_dataset(card["data"]).test
        name = f"{card['data']}-{folder.name.rpartition('-')[0]}"
        about = {
            "data": card["data"],
            "recipe": Recipe.of_header(card["recipe"]),
            "seed": card["seed"],
            # Epochs during which the machine did other things took longer.
            "training_seconds": round(len(history) * median(e["seconds"] for e in history)),
            "half": True,
        }
        full = evaluate(model, test.images, test.labels)
        save_pretrained(model, SHIPPED / name, **about)
        half = evaluate(from_pretrained(SHIPPED / name), test.images, test.labels)
        save_pretrained(model, SHIPPED / name, **about, clean_accuracy=half)
        size = (SHIPPED / name / "model.safetensors").stat().st_size
        print(f"{name}: {full} in 32 bits, {half} in 16 bits, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        ship(Path(argument))
