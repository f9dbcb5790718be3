"""The commands `runs list`, `runs show`, `runs compare`, `runs verify` and `runs clean`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from mixup_inference.cli.console import examples, say, say_columns
from mixup_inference.errors import InputError

if TYPE_CHECKING:
    from mixup_inference.experiments.run_directory import Run

Output = Annotated[Path, Parameter(name=["--output", "-o"], help="Folder of the runs.")]
RunName = Annotated[str, Parameter(help="Name of a run in OUTPUT, or the path of its folder.")]
Yes = Annotated[
    bool,
    Parameter(
        name=["--yes", "-y"],
        negative="",
        help="Delete; without it, only print what would be deleted.",
    ),
]
OUTPUT = Path("runs")

runs_app = App(
    name="runs",
    help="Stored runs: list, show, compare, verify and clean them.",
    help_epilogue=examples("runs list", "runs verify", "runs clean digits --yes"),
)


@runs_app.command(name="list", help_epilogue=examples("runs list", "runs list -o results"))
def list_(*, output: Output = OUTPUT) -> None:
    """List all runs: whether they are complete, when they finished, their size."""
    from mixup_inference.experiments.run_directory import find_runs  # noqa: PLC0415 (imports torch)

    runs = find_runs(output)
    rows = [
        [run.folder.name, _state(run), _finished(run), _size(run.size), _title(run)] for run in runs
    ]
    if rows:
        say_columns([["name", "state", "finished", "size", "title"], *rows])
    else:
        say(f"No runs in {output}.")


@runs_app.command(help_epilogue=examples("runs show digits", "runs show results/digits"))
def show(run: RunName, /, *, output: Output = OUTPUT) -> None:
    """Show a run: its settings, the versions that made it, and its files."""
    from mixup_inference.experiments.run_directory import find_run  # noqa: PLC0415

    found = find_run(run, output)
    say(f"{found.folder}: {_title(found)}")
    say(f"{_state(found)}, {_size(found.size)}")
    if found.results is not None:
        made = ", ".join(f"{name} {v}" for name, v in found.results["versions"].items())
        say(f"finished {_finished(found)} on {found.results['device']} with {made}")
        for name, value in found.results["spec"].items():
            say(f"  {name} = {json.dumps(value, ensure_ascii=False)}")
    say("")
    used = {True: "used", False: "not used", None: "not known"}
    rows = []
    for artefact in found.files:
        about = artefact.path.stat()
        when = datetime.fromtimestamp(about.st_mtime).strftime("%Y-%m-%d %H:%M")
        name = found.name_of(artefact.path)
        rows.append([name, _size(about.st_size), when, used[found.is_used(artefact)]])
    if rows:
        say_columns([["part", "size", "written", "by results.json"], *rows])


@runs_app.command(help_epilogue=examples("runs compare digits elsewhere/digits"))
def compare(one: RunName, two: RunName, /, *, output: Output = OUTPUT) -> None:
    """Compare two runs of an experiment: which test images get different labels?

    Machines, batch sizes and engines round differently. That may switch a label
    where two classes nearly tie, that is, where the margin between their
    log-probabilities is small in both runs.
    """
    from mixup_inference.experiments.compare import compare_runs  # noqa: PLC0415
    from mixup_inference.experiments.run_directory import find_run  # noqa: PLC0415

    found = compare_runs(find_run(one, output), find_run(two, output))
    rows = []
    for switch in found.switches:
        margins = ["infinitely much" if m is None else f"{m:.6f}" for m in switch.margins]
        labels = [f"{label} by {m}" for label, m in zip(switch.labels, margins, strict=True)]
        rows.append([switch.row, switch.column, str(switch.point), *labels])
    say_columns([["row", "column", "point", f"label in {one}", f"in {two}"], *rows])
    count = len(found.switches)
    ending = f", with margins up to {found.widest:.6f}" if count else ""
    verb = "differs" if count < 2 else "differ"
    say(f"{count or 'None'} of {found.compared} labels {verb}{ending}.")


@runs_app.command(help_epilogue=examples("runs verify", "runs verify digits", "runs verify -o out"))
def verify(*runs: RunName, output: Output = OUTPUT) -> None:
    """Read runs (all of OUTPUT, if none is named) and compare everything with its checksum.

    The exit code is 1 if anything is damaged, changed or missing. Run the
    experiment again to recompute that; the rest is reused.
    """
    from mixup_inference.experiments.run_directory import find_run, find_runs  # noqa: PLC0415

    found = [find_run(name, output) for name in runs] or find_runs(output)
    bad = 0
    for run in found:
        problems = list(run.problems())
        bad += len(problems)
        say(f"{run.folder}: {len(run.files)} parts, {len(problems) or 'no'} problems")
        for problem in problems:
            say(f"  {problem.message}")
    if not found:
        say(f"No runs in {output}.")
    if bad:
        sys.exit(1)


@runs_app.command(help_epilogue=examples("runs clean digits", "runs clean digits --yes"))
def clean(*runs: RunName, yes: Yes = False, output: Output = OUTPUT) -> None:
    """Delete damaged files, and files from which a run's results.json was not made.

    The latter come from earlier settings, or from `tune` and `analyze`. In a run
    without results.json, only damaged files are deleted. Nothing is deleted
    without --yes, and never anything that this program did not write.
    """
    from mixup_inference.experiments.run_directory import find_run, lock_run  # noqa: PLC0415

    if not runs:
        raise InputError("name the runs to clean; `runs list` lists them.")
    for found in [find_run(name, output) for name in runs]:
        with lock_run(found.folder) if yes else nullcontext():
            _clean(found, yes=yes)


def _clean(run: Run, *, yes: bool) -> None:
    total = count = 0
    for rubbish in run.unneeded():
        size = rubbish.path.lstat().st_size
        total, count = total + size, count + 1
        say(f"  {rubbish.path}  {_size(size)}  {rubbish.message}")
        if yes:
            rubbish.path.unlink(missing_ok=True)
            if not any(rubbish.path.parent.iterdir()):
                rubbish.path.parent.rmdir()
    if yes or not count:
        say(f"{run.folder}: deleted {count} files, {_size(total)}.")
    else:
        say(f"{run.folder}: {count} files, {_size(total)}, would be deleted; --yes does it.")


def _state(run: Run) -> str:
    """How complete it is, and who works on it."""
    from mixup_inference.experiments.cache import KINDS  # noqa: PLC0415
    from mixup_inference.experiments.run_directory import RESULTS, is_locked  # noqa: PLC0415

    kinds = Counter(kind for kind, _ in {(file.kind, file.hash) for file in run.files})
    parts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
    if is_locked(run.folder):
        return "at work"
    if run.results is None:
        why = "damaged results" if (run.folder / RESULTS).exists() else "unfinished"
        return f"{why} ({parts})"
    return f"complete but for {len(run.missing)} parts" if run.missing else "complete"


def _finished(run: Run) -> str:
    if run.results is None:
        return ""
    when = datetime.fromisoformat(run.results["timing"]["finished"])
    return when.astimezone().strftime("%Y-%m-%d %H:%M")


def _title(run: Run) -> str:
    return "" if run.results is None else str(run.results["title"])


def _size(count: float) -> str:
    """Bytes as people read them.

    >>> _size(999), _size(1_234_567)
    ('999 B', '1.2 MB')
    """
    units = ["B", "kB", "MB", "GB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"
