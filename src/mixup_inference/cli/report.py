"""The command `report`: pages from results that are already there."""

from __future__ import annotations

import warnings
from pathlib import Path

from mixup_inference.cli.console import say
from mixup_inference.cli.run import alone_in
from mixup_inference.errors import InputError, MixupInferenceError, MixupInferenceWarning
from mixup_inference.reporting import Results, check_results, write_comparison, write_report
from mixup_inference.utils.io import checksum_problem, is_file, parse_json, read_text
from mixup_inference.utils.text import plain_values

#: Bytes; no run leaves more.
LARGEST = 100_000_000


def write_reports(runs: tuple[Path, ...], output: Path | None) -> None:
    """One run's report again, or several runs side by side."""
    results = [_read(run) for run in runs]
    if len(results) == 1 and output is not None:
        raise InputError(
            "--output is for several runs; the report of one run goes into its folder."
        )
    try:
        if len(results) == 1:
            folder = runs[0] if runs[0].is_dir() else runs[0].parent
            with alone_in(folder):
                path = write_report(results[0], folder)[0]
        else:
            path = write_comparison(results, output or Path("comparison.html"))
    except (MixupInferenceError, OSError):
        raise
    except Exception as error:  # a file that came from elsewhere can lack or hold anything
        names = ", ".join(str(run) for run in runs)
        raise InputError(
            f"{names}: no report can be made of these results ({type(error).__name__}: {error}). "
            "Are they of a finished run by this version?"
        ) from error
    say(str(path))


def _read(run: Path) -> Results:
    """The results of a run: its folder, or the file itself."""
    path = run / "results.json" if run.is_dir() else run
    if not is_file(path):
        raise InputError(
            f"cannot read {path}: there is no such file. Give a finished run's folder."
        )
    text = read_text(path, what="the results", most=LARGEST)
    results = parse_json(text, str(path))
    check_results(results, str(path))
    problem = checksum_problem(results)
    if problem is not None and "checksum" in results:
        raise InputError(f"{path} {problem}. Run the experiment again; what is whole is reused.")
    if problem is not None:
        message = f"{path} {problem}, as an older version wrote it, so it cannot be checked."
        warnings.warn(message, MixupInferenceWarning, stacklevel=2)
    try:
        clean: Results = plain_values(results)
    except RecursionError:
        raise InputError(f"{path} is nested too deeply.") from None
    return clean
