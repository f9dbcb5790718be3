"""Put finished runs into this folder, without pictures of the data.

`python results/keep.py RUN...`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from mixup_inference.evaluation.sums import SUMS
from mixup_inference.reporting import write_report, write_results

HERE = Path(__file__).parent
#: Formats of figures that are not kept: the PNG is what the documentation shows.
SPARED = (".svg", ".json")


def keep(run: Path, folder: Path) -> Path:
    """The results of a run, its tables, report and figures, in a folder of its name."""
    results = without_pictures(json.loads((run / "results.json").read_text()))
    kept = folder / str(results["name"])
    shutil.rmtree(kept / "figures", ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    write_results(results, kept)
    write_report(results, kept)
    for path in kept.glob("figures/*"):
        if path.suffix in SPARED:
            path.unlink()
    (kept / SUMS).unlink()
    return kept


def without_pictures(results: dict[str, Any]) -> dict[str, Any]:
    """The same results without galleries, and without a checksum over them."""
    for entry in (results.get("figures") or {}).values():
        entry.pop("gallery", None)
    if results.get("adaptive"):
        results["adaptive"]["gallery"] = None
    results.pop("checksum", None)
    return results


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(keep(Path(argument), HERE))
