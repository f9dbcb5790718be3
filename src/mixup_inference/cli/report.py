"""The command `report`: pages from results that are already there."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from mixup_inference.cli.work import alone_in
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation import SCHEMA
from mixup_inference.files import broken_seal
from mixup_inference.reporting import write_comparison, write_report


def write_reports(runs: tuple[Path, ...], output: Path | None) -> None:
    """One run's report again, or several runs side by side."""
    results = [_read(run) for run in runs]
    if len(results) == 1 and output is not None:
        raise InputError("--output is for several runs; the report of one goes into its folder.")
    output = output or Path("comparison.html")
    if len(results) == 1:
        folder = runs[0] if runs[0].is_dir() else runs[0].parent
        with alone_in(folder):
            paths = write_report(results[0], folder)[:1]
    else:
        write_comparison(results, output)
        paths = [output]
    for path in paths:
        sys.stdout.write(f"{path}\n")


def _read(run: Path) -> dict[str, Any]:
    """The results of a run: its folder, or the file itself."""
    path = run / "results.json" if run.is_dir() else run
    try:
        results: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path}: {error}. Give the folder of a finished run."
        ) from None
    needed = {"columns", "rows", "spec", "points"}
    if (
        not isinstance(results, dict)
        or results.get("schema") != SCHEMA
        or not results.keys() >= needed
    ):
        raise InputError(f"{path} is not the results.json of a run by this version.")
    problem = broken_seal(results)
    if problem is not None and "checksum" in results:
        raise InputError(f"{path} {problem}. Run the experiment again; what is whole is reused.")
    if problem is not None:
        message = f"{path} {problem}, as an older version wrote it, so it cannot be checked."
        warnings.warn(message, MixupInferenceWarning, stacklevel=2)
    return results
