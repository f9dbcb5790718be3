"""Put the numbers of finished runs into results/, without pictures of the data.

With `--join`, the rows and the models' figures of a run of a part of an experiment are put among
those that are kept of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mixup_inference.experiments import load_spec
from mixup_inference.experiments.spec import AttackSpec
from mixup_inference.reporting import write_results
from mixup_inference.utils.io import CHECKSUMS

RESULTS = Path(__file__).parents[1] / "results"


def keep(run: Path, folder: Path, *, join: bool = False) -> Path:
    """Keep results.json and the CSV tables of a run, in a folder of its name."""
    results = without_pictures(json.loads((run / "results.json").read_text()))
    kept = folder / str(results["name"])
    if join:
        results = joined(json.loads((kept / "results.json").read_text()), results)
    kept.mkdir(parents=True, exist_ok=True)
    write_results(results, kept)
    for name in ("table.md", CHECKSUMS):
        (kept / name).unlink()
    return kept


def joined(kept: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """The rows and figures of two runs of parts of one experiment, in the experiment's order.

    They must have measured the same: points, attacks, columns, draws, versions. What is measured
    again replaces what was there. If a model was computed in bfloat16 before and is not now, or the
    other way round, all of its rows must be measured again.
    """
    same = ("schema", "name", "title", "columns", "points", "seed", "device", "versions")
    pairs = {key: (kept[key], added[key]) for key in same}
    pairs |= {
        f"spec.{key}": (kept["spec"].get(key), added["spec"].get(key))
        for key in ("data", "draws", "batch_size")
    }
    pairs["spec.attack"] = (_attack(kept), _attack(added))
    for key, (one, other) in pairs.items():
        if one != other:
            raise ValueError(f"{key} differs: {one} is kept, {other} is to be added.")
    again = {row["title"] for row in added["rows"]}
    before, engines = _engines(kept), _engines(kept) | _engines(added)
    for model in {row["model"] for row in kept["rows"] if row["title"] not in again}:
        pair = before[model], engines[model]
        if pair[0] != pair[1] and "bfloat16" in pair:
            raise ValueError(f"{model} was computed by {pair[0]}, and is by {pair[1]} now.")
    if added["adaptive"]:
        raise ValueError("adaptive attacks cannot be joined.")
    whole = load_spec(kept["name"])
    order = [row.title for row in whole.rows]
    out = kept | {"spec": dict(kept["spec"])}
    out.pop("checksum", None)
    for where, its, theirs in (
        (out, kept, added),
        (out["spec"], kept["spec"], added["spec"]),
    ):
        rows = {row["title"]: row for row in (*its["rows"], *theirs["rows"])}
        where["rows"] = sorted(rows.values(), key=lambda row: order.index(row["title"]))
        where["models"] = its["models"] | theirs["models"]
    if added["figures"]:
        figures = (kept["figures"] or {}) | added["figures"]
        out["figures"] = {name: figures[name] for name in whole.models if name in figures}
    out["engines"] = {name: engines[name] for name in whole.models if name in engines}
    for key in ("trainings", "artefacts"):
        out[key] = kept[key] | added[key]
    seconds = kept["timing"]["seconds"] + added["timing"]["seconds"]
    trained = kept["timing"]["training_seconds"] | added["timing"]["training_seconds"]
    out["timing"] = added["timing"] | {"seconds": seconds, "training_seconds": trained}
    return out


def _engines(results: dict[str, Any]) -> dict[str, str]:
    """What computed each model, also in a run of before that was said."""
    said = dict.fromkeys(results["spec"]["models"], results["spec"].get("engine", "eager"))
    return said | results.get("engines", {})


def _attack(results: dict[str, Any]) -> AttackSpec | None:
    """What was attacked with, also if settings have come since that it does not mention."""
    said = results["spec"].get("attack")
    return None if said is None else AttackSpec.model_validate(said)


def without_pictures(results: dict[str, Any]) -> dict[str, Any]:
    """The same results without galleries, and without a checksum over them."""
    for entry in (results.get("figures") or {}).values():
        entry.pop("gallery", None)
    if results.get("adaptive"):
        results["adaptive"]["gallery"] = None
    results.pop("checksum", None)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--join", action="store_true", help="add to what is kept of the experiment")
    arguments = parser.parse_args()
    for run in arguments.runs:
        print(keep(run, RESULTS, join=arguments.join))
