"""The command `tune`: search a defence's grid and write the best settings as a preset."""

from __future__ import annotations

from rich.console import Console

from mixup_inference.cli.evaluate_options import load_code, spec_and_model
from mixup_inference.cli.options import POINTS, Common, OneModel
from mixup_inference.cli.run import open_experiment
from mixup_inference.defenses import write_preset
from mixup_inference.evaluation.grid_search import grid_of, in_words
from mixup_inference.experiments import Tuned, tune
from mixup_inference.metrics.accuracy import cell_entry
from mixup_inference.reporting.console import print_line
from mixup_inference.reporting.formatting import format_margin, percent
from mixup_inference.utils.io import add_checksums
from mixup_inference.validation import check_number


def tune_one(name: str | None, one: OneModel, loss: float, common: Common) -> None:
    """Tune one defence for one model, of an experiment or of the user's own."""
    check_number(loss, what="--loss / 100", least=0, most=1)
    load_code(one)
    grid_of(one.defense)  # complains before anything is made
    allowed, never = {"model", "defense"}, {"lam", "setting", "preset"}
    tuning = one.points or POINTS
    spec, named = spec_and_model(name, one, common, allowed=allowed, never=never, tuning=tuning)
    model = named or next(iter(spec.models))
    with open_experiment(spec, common) as experiment:
        tuned = tune(experiment, model, one.defense, loss=loss)
        path = experiment.folder / "presets" / f"{model}+{one.defense}.toml"
        comment = _comment(tuned, f"{model} of {spec.title}", loss)
        write_preset(path, one.defense, tuned.settings, comment=comment)
        add_checksums(experiment.folder, [path])
    if not common.quiet:
        _print(Console(), tuned, one.defense, loss)
        print_line(Console(), f"\nSaved as {path}")


def _comment(tuned: Tuned, what: str, loss: float) -> str:
    """Where a preset comes from."""
    change = tuned.chosen.clean.value - tuned.base.value
    return (
        f"Chosen for {what}: of {len(tuned.trials)} settings the one with the\n"
        f"highest attacked accuracy that loses at most {100 * loss:g} points of clean accuracy\n"
        f"(its clean accuracy changes by {100 * change:+.1f}), on {tuned.base.total} tuning points."
    )


def _print(console: Console, tuned: Tuned, defense: str, loss: float) -> None:
    """The grid on the tuning points, and the choice on the test points."""
    print_line(
        console,
        f"{defense} on {tuned.base.total} tuning points; undefended and clean: "
        f"{percent(tuned.base.value)}. Allowed to lose {100 * loss:g} points.",
    )
    width = max(len(in_words(t.settings)) for t in tuned.trials) + 2
    print_line(console, _line("", width, ["clean", *tuned.chosen.attacked]), "bold")
    for trial in tuned.trials:
        shown = [percent(cell.value) for cell in (trial.clean, *trial.attacked.values())]
        mark = "  <- chosen" if trial == tuned.chosen else ""
        print_line(console, _line(in_words(trial.settings), width, shown) + mark)
    print_line(console, f"\nOn {tuned.reported[0][0].total} test points:")
    width = max(len(row.title) for row in tuned.rows) + 2
    for row, cells in zip(tuned.rows, tuned.reported, strict=True):
        shown = [format_margin(cell_entry(cell)) for cell in cells]
        print_line(console, _line(row.title, width, shown))


def _line(title: str, width: int, cells: list[str]) -> str:
    return title.ljust(width) + "".join(cell.rjust(13) for cell in cells)
