"""The command line: a thin door. It parses, calls, prints."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter

from mixup_inference import __version__
from mixup_inference.errors import MixupInferenceError

if TYPE_CHECKING:
    from mixup_inference.evaluation import Experiment
    from mixup_inference.reporting import ConsoleListener

HELP = """Mixup inference: defend image classifiers, detect adversarial inputs, measure honestly.

An experiment is a TOML file, or the name of a shipped one (digits). Everything it computes is \
kept in runs/NAME and never computed twice; after Ctrl-C the same command goes on.
"""


def _examples(*commands: str) -> str:
    """Lines for the end of a command's help."""
    return "Examples:\n" + "".join(f"  mixup-inference {command}\n" for command in commands)


app = App(
    name="mixup-inference",
    help=HELP,
    help_epilogue=_examples(
        "run                      # the paper's table on digits",
        "run my-experiment.toml   # your own experiment",
        "run -o elsewhere         # results in elsewhere/digits",
        "train digits             # only train its models",
    ),
    help_format="plaintext",
    version=__version__,
)

Spec = Annotated[str, Parameter(help="Name of a shipped experiment, or path of a TOML file.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options that every stage takes."""

    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs")
    "Results go to OUTPUT/NAME of the experiment."

    device: str = "cpu"
    "cpu, cuda, mps, or auto for the fastest there is."

    data_root: Path | None = None
    "Where data sets are that are not embedded; by default $MIXUP_INFERENCE_DATA or ./data."

    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")] = False
    "Print nothing but errors."


COMMON = Common()


@app.command(help_epilogue=_examples("run", "run my-experiment.toml --output results"))
def run(spec: Spec = "digits", /, *, common: Common = COMMON) -> None:
    """Train, attack, defend, measure and report."""
    _work("run", spec, common)


@app.command(help_epilogue=_examples("train digits"))
def train(spec: Spec = "digits", /, *, common: Common = COMMON) -> None:
    """Only train the experiment's models."""
    _work("train", spec, common)


@app.command(help_epilogue=_examples("attack digits"))
def attack(spec: Spec = "digits", /, *, common: Common = COMMON) -> None:
    """Make the experiment's adversarial examples (and the models, if they are not there)."""
    _work("attack", spec, common)


@app.command(help_epilogue=_examples("evaluate digits"))
def evaluate(spec: Spec = "digits", /, *, common: Common = COMMON) -> None:
    """Measure the experiment's table (and make what it needs), without the HTML report."""
    _work("evaluate", spec, common)


def _work(stage: str, name: str, common: Common) -> None:
    """Do one stage of an experiment, telling the terminal about it."""
    started = time.perf_counter()
    from rich.console import Console  # noqa: PLC0415 (--help must not wait for all this)

    from mixup_inference.evaluation import Experiment, load_spec  # noqa: PLC0415
    from mixup_inference.progress import SILENT, RichProgress  # noqa: PLC0415
    from mixup_inference.reporting import ConsoleListener  # noqa: PLC0415

    spec = load_spec(name)
    console = Console(quiet=common.quiet)
    bars = SILENT if common.quiet else RichProgress(console if console.is_terminal else None)
    experiment = Experiment(
        spec,
        common.output / spec.name,
        device=common.device,
        data_root=common.data_root,
        progress=bars,
    )
    experiment.check()
    listener = ConsoleListener(console, spec, experiment.columns)
    experiment.listener = listener
    listener.say(f"{spec.title}  ({experiment.folder})", "bold")
    try:
        if stage == "train":
            paths = [experiment.model_folder(m) for m in spec.models if experiment.model(m)]
        elif stage == "attack":
            for model in spec.models:
                for mode in spec.attack.modes:
                    experiment.examples(model, mode)
            paths = [experiment.folder / "attacks"]
        else:
            paths = _measure(experiment, listener, report=stage == "run", started=started)
    except KeyboardInterrupt:
        listener.say(
            f"\nStopped. What was finished is kept in {experiment.folder}; go on with:\n"
            f"  mixup-inference {shlex.join(sys.argv[1:])}"
        )
        raise
    _print_summary(listener, paths, time.perf_counter() - started)


def _measure(
    experiment: Experiment, listener: ConsoleListener, *, report: bool, started: float
) -> list[Path]:
    """All cells, then the files."""
    from mixup_inference.evaluation import collect  # noqa: PLC0415
    from mixup_inference.reporting import write_report, write_results  # noqa: PLC0415

    cells = len(experiment.spec.rows) * len(experiment.columns)
    with experiment.progress.task("table", total=cells) as listener.task:
        results = collect(experiment, seconds=time.perf_counter() - started)
    paths = write_results(results, experiment.folder)
    return paths + (write_report(results, experiment.folder) if report else [])


def _print_summary(listener: ConsoleListener, paths: list[Path], seconds: float) -> None:
    if listener.computed == 0:
        listener.say("\nNothing was recomputed: everything was already there.")
    else:
        counts = f"{listener.computed} parts computed, {listener.reused} reused"
        listener.say(f"\n{counts}, {seconds:.0f} s.")
    for path in paths:
        listener.say(f"  {path}")


def main() -> None:
    """The command ``mixup-inference``: exit code 0, 2 for bad input, 130 after Ctrl-C."""
    try:
        app(exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except MixupInferenceError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"error: {error.strerror or error}: {error.filename or ''}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
