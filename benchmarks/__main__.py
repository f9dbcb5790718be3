"""`python -m benchmarks`: measure everything and write results.json, README.md and the plots.

`python -m benchmarks limit agreement` measures these parts anew and keeps the other results, which
should be of the same machine.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import attacks, draws, growth, inference, pool_on_disk, report, training
from mixup_inference import __version__

FOLDER = Path(__file__).parent
ROUNDS = 5


def main(asked: Sequence[str]) -> None:
    """All benchmarks, or those that are asked for, one after the other."""
    parts = {
        "limit": lambda: inference.against_the_limit(2 * ROUNDS),  # close calls
        "engines": lambda: inference.by_engine(ROUNDS),
        "agreement": draws.agreement,
        "pgd": lambda: attacks.against_peers(ROUNDS),
        "eot": lambda: attacks.eot(ROUNDS),
        "rounding": lambda: attacks.rounding(ROUNDS),
        "growth": lambda: growth.growth(ROUNDS),
        "pool": lambda: pool_on_disk.against_memory(ROUNDS),
        "training": lambda: training.against_a_plain_loop(ROUNDS),
    }
    start = time.perf_counter()
    if unknown := set(asked) - set(parts):
        sys.exit(f"unknown part {', '.join(unknown)}; known: {', '.join(parts)}")
    file = FOLDER / "results.json"
    before: dict[str, Any] = json.loads(file.read_text()) if asked else {}
    results = before | {
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "architecture": platform.machine(),
        },
        "versions": {"mixup-inference": __version__, "torch": torch.__version__.split("+")[0]},
        "rounds": ROUNDS,
    }
    for name in asked or parts:
        print(f"{name} ...", flush=True)
        results[name] = json.loads(json.dumps(parts[name]()))  # as it will be read back
    if not asked:
        results["minutes"] = (time.perf_counter() - start) / 60
    file.write_text(json.dumps(results, indent=1) + "\n")
    report.write(results, FOLDER)
    print(f"{FOLDER / 'README.md'}")


if __name__ == "__main__":
    main(sys.argv[1:])
