"""`python -m benchmarks`: measure everything and write results.json, README.md and the plots."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import attacks, draws, growth, inference, pool_on_disk, report, training
from mixup_inference.version import __version__

FOLDER = Path(__file__).parent
ROUNDS = 5


def main() -> None:
    """All benchmarks, one after the other."""
    start = time.perf_counter()
    parts = {
        "limit": lambda: inference.against_the_limit(ROUNDS),
        "engines": lambda: inference.by_engine(ROUNDS),
        "agreement": draws.agreement,
        "pgd": lambda: attacks.against_peers(ROUNDS),
        "eot": lambda: attacks.eot(ROUNDS),
        "growth": lambda: growth.growth(ROUNDS),
        "pool": lambda: pool_on_disk.against_memory(ROUNDS),
        "training": lambda: training.against_a_plain_loop(ROUNDS),
    }
    results: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "architecture": platform.machine(),
        },
        "versions": {"mixup-inference": __version__, "torch": torch.__version__.split("+")[0]},
        "rounds": ROUNDS,
    }
    for name, measure in parts.items():
        print(f"{name} ...", flush=True)
        results[name] = measure()
    results["minutes"] = (time.perf_counter() - start) / 60
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    report.write(results, FOLDER)
    print(f"{FOLDER / 'README.md'}: {results['minutes']:.1f} minutes.")


if __name__ == "__main__":
    main()
