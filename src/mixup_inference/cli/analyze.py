"""The command `analyze`: the paper's Section 3 and its detection scores, measured on a model."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from mixup_inference.cli.evaluate_options import spec_and_model
from mixup_inference.cli.options import Common, OneModel
from mixup_inference.cli.run import open_experiment
from mixup_inference.experiments import analyses, check_spec
from mixup_inference.experiments.spec import FiguresSpec
from mixup_inference.metrics.accuracy import mean_interval
from mixup_inference.reporting.console import print_line
from mixup_inference.reporting.summary import describe_linearity
from mixup_inference.utils.io import add_checksums, write_json


def analyze_one(name: str | None, one: OneModel, common: Common) -> None:
    """Analyse the models of an experiment, or one of the user's own."""
    spec, model = spec_and_model(name, one, common, allowed={"model"})
    figures = (spec.figures or FiguresSpec()).model_dump() | {"gallery": 0}
    figures |= {} if model is None else {"models": (model,)}
    document = spec.model_dump(exclude_none=True) | {"figures": figures}
    spec = check_spec(document, source=spec.name, allow_code=True)  # it was asked for above
    with open_experiment(spec, common) as experiment:
        found = analyses(experiment, tradeoffs=False)
        path = experiment.folder / "analysis.json"
        write_json(path, found)
        add_checksums(experiment.folder, [path])
    if common.quiet:
        return
    console = Console()
    for title, entry in found.items():
        _print(console, title, entry)
    print_line(console, f"\nEverything, with standard errors: {path}")


def _print(console: Console, name: str, entry: dict[str, Any]) -> None:
    print_line(console, f"\n{name}", "bold")
    print_line(console, describe_linearity(name, entry["linearity"]))
    scores = entry["detection"]["scores"]
    aucs = {(s["score"], s["lam"], s["attack"]): s["auc"] for s in scores}
    for attack in dict.fromkeys(score["attack"] for score in scores):
        table = Table(
            *("lam", "F_y", "F_yhat", "transfer", "shrinkage", "RIC", "DG", "AUC"),
            title=f"{attack} PGD-{entry['steps']}: adversarial inputs, before -> after",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for theory in (t for t in entry["theory"] if t["attack"] == attack):
            kind = theory["kind"].upper()
            table.add_row(*_cells(kind, theory, aucs[kind, theory["lam"], attack]))
        if table.row_count:
            console.print(table)
        else:
            print_line(console, f"{attack}: the attack turned fewer than two points.")
        others = [s for s in scores if s["attack"] == attack and s["lam"] is None]
        words = ", ".join(f"{s['score']} {s['auc']:.3f}" for s in others)
        print_line(console, f"AUC of other scores: {words}.")


def _cells(kind: str, theory: dict[str, Any], auc: float) -> list[str]:
    """One row: a kind of mixup inference at one ratio."""
    seen, y_hat, ric = theory["adversarial"], theory["y_hat"], theory["ric"]
    gap, used = theory["detection_gap"], theory["counts"]["used"]
    mean, _, high = mean_interval(gap["mean"], gap["se"], used)
    return [
        f"{kind} {theory['lam']:g}",
        f"{seen['y']['mean']:.2f} -> {seen['y_mi']['mean']:.2f}",
        f"{seen['y_hat']['mean']:.2f} -> {seen['y_hat_mi']['mean']:.2f}",
        f"{y_hat['input_transfer']['mean']:+.2f}",
        f"{y_hat['perturbation_shrinkage']['mean']:+.2f}",
        f"{'yes' if ric['holds'] else 'no'} ({ric['points']}/{ric['total']})",
        f"{mean:+.2f} ± {high - mean:.2f}",
        f"{auc:.3f}",
    ]
