"""Run the stages of an experiment from the command line, by one process or several; dry runs."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Timer, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import distributed

from mixup_inference.cli.options import Common, Processes
from mixup_inference.datasets import shape_of
from mixup_inference.experiments import Callback, Experiment, Spec, measure_speeds, plan
from mixup_inference.experiments.cache import leftovers
from mixup_inference.experiments.run_directory import Run, lock_run
from mixup_inference.experiments.spec import in_precision, with_attack_precision, with_engine
from mixup_inference.reporting import ConsoleCallback, write_report, write_results
from mixup_inference.training import make_fabric
from mixup_inference.utils.distributed import check_device
from mixup_inference.utils.progress import SILENT, RichProgress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


ALONE = Processes()


@contextmanager
def together(spec: Spec, common: Common, processes: Processes) -> Iterator[Fabric | None]:
    """What connects the processes that the options ask for, for as long as the context lasts.

    None for one process.
    """
    one = processes.devices in (None, 1) and processes.nodes in (None, 1)
    if one and processes.strategy == "auto" and not distributed.is_torchelastic_launched():
        yield None
        return
    trained = [spec.recipe(name) for name in spec.models if spec.is_trained(name)]
    precisions = {recipe.precision or "32-true" for recipe in trained}
    try:
        yield make_fabric(
            check_device(common.device),
            devices=processes.devices,
            nodes=processes.nodes,
            precision=precisions.pop() if len(precisions) == 1 else None,
            strategy=processes.strategy,
        )
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def open_experiment(
    spec: Spec, common: Common, fabric: Fabric | None = None, callback: Callback | None = None
) -> Iterator[Experiment]:
    """An experiment in its folder, checked, with progress on the terminal if it is one.

    Nobody else works in that folder meanwhile; of several processes the first holds it for all.
    """
    console = Console()
    bars = SILENT if common.quiet else RichProgress(console if console.is_terminal else None)
    logging.getLogger("mixup_inference").setLevel("WARNING" if common.quiet else "INFO")
    experiment = Experiment(
        _as_asked(spec, common),
        common.output / spec.name,
        device=common.device,
        fabric=fabric,
        data_root=common.data_root,
        callback=callback,
        progress=bars,
        reuse_models=common.reuse_models,
    )
    with alone_in(experiment.folder) if experiment.ranks.is_first else nullcontext():
        experiment.check()
        yield experiment


def _as_asked(spec: Spec, common: Common) -> Spec:
    """The spec with what the command line says instead of it."""
    if common.engine is not None:
        spec = with_engine(spec, common.engine)
    if common.attack_precision is not None:
        spec = with_attack_precision(spec, common.attack_precision)
    return spec


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run's folder, and tidy up after a command that was killed in it."""
    with lock_run(folder):
        for path in leftovers(folder):
            path.unlink(missing_ok=True)
        yield


@contextmanager
def kept_interrupts(seconds: float = 5.0) -> Iterator[None]:
    """End with KeyboardInterrupt after Ctrl-C, even if a library loses it.

    Compiled code may turn an interrupt into an error of its own, or drop it; then it is sent again
    after some seconds.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (is_default and hasattr(signal, "pthread_kill")):  # Windows has none
        yield
        return
    again: list[Timer] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        again.append(Timer(seconds, signal.pthread_kill, [main_thread().ident, number]))
        again[-1].daemon = True
        again[-1].start()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if again:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for timer in again:
            timer.cancel()


def work(stage: str, spec: Spec, common: Common, processes: Processes = ALONE) -> None:
    """Do one stage of an experiment, telling the terminal about it."""
    started = time.perf_counter()
    if processes.precision is not None:
        spec = in_precision(spec, processes.precision)
    with together(spec, common, processes) as fabric:
        if fabric is not None and not fabric.is_global_zero:
            common = replace(common, quiet=True)
        titles = [row.title for row in spec.rows]
        callback = ConsoleCallback(Console(quiet=common.quiet), titles, spec.columns)
        with open_experiment(spec, common, fabric, callback) as experiment:
            callback.say(f"{experiment.spec.title}  ({experiment.folder})", "bold")
            if others := Run(experiment.folder).made_by_others():
                callback.warn(
                    f"made with {others}; what depends on these versions is computed again."
                )
            try:
                with kept_interrupts():
                    paths = _run_stage(stage, experiment, callback)
            except KeyboardInterrupt:
                callback.say(
                    f"\nStopped. What was finished is in {experiment.folder}; continue with:\n"
                    f"  mixup-inference {shlex.join(sys.argv[1:])}"
                )
                raise
    if callback.computed == 0:
        callback.say("\nNothing was recomputed: everything was already there.")
    else:
        parts = "part" if callback.computed == 1 else "parts"
        counts = f"{callback.computed} {parts} computed, {callback.reused} reused"
        callback.say(f"\n{counts}, {time.perf_counter() - started:.0f} s.")
    for path in paths:
        callback.say(f"  {path}")


def _run_stage(stage: str, experiment: Experiment, callback: ConsoleCallback) -> list[Path]:
    """Run one stage, or all of them; return the paths of what it made."""
    if stage == "train":
        experiment.train()
        trained = filter(experiment.spec.is_trained, experiment.spec.needed_models)
        return [experiment.models.folder_of(name) for name in trained]
    if stage == "attack":
        experiment.train()
        experiment.attack(everything=True)
        return [experiment.folder / "attacks"]
    results = experiment.run()
    if not experiment.ranks.is_first:
        return []
    paths = write_results(results, experiment.folder)
    callback.verdicts(results.get("adaptive"))
    if stage == "run" or (experiment.folder / "report.html").exists():
        paths += write_report(results, experiment.folder)[:1]
        paths.append(experiment.folder / "figures")
    return paths


def print_plan(spec: Spec, common: Common) -> None:
    """What an experiment would compute, part by part, with an estimate of the time."""
    data, spec = spec.data, _as_asked(spec, common)
    shape = shape_of(data.name, root=common.data_root, size=data.size, channels=data.channels)
    speeds = measure_speeds(spec, shape, check_device(common.device))
    table = Table(
        "stage", "what", title=Text(spec.title), title_justify="left", box=None, pad_edge=False
    )
    for name in ("forward", "backward", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    total = 0.0
    for part in plan(spec, shape):
        seconds = speeds[part.model].seconds(part)
        total += seconds
        back = f"{part.backward:,}" if part.backward else ""
        table.add_row(part.stage, Text(part.title), f"{part.forward:,}", back, _in_words(seconds))
    console = Console()
    console.print(table)
    console.print(
        f"\nIn all about {_in_words(total)} on this machine. Forward and backward: images through "
        "the network and back. MI-Combined is counted as if it flagged every image. What is "
        "already in the output folder is counted, too.",
        highlight=False,
    )


def _in_words(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
