"""The commands: parse, call the library, print."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import App, CycloptsError, Parameter

from mixup_inference import __version__
from mixup_inference.cli.catalogue import data_app, models_app
from mixup_inference.cli.console import examples, profiled
from mixup_inference.cli.guard import guard_app
from mixup_inference.cli.options import Common, Flag, OneModel, Part, Processes
from mixup_inference.cli.runs import runs_app
from mixup_inference.errors import MixupInferenceError, MixupInferenceWarning
from mixup_inference.utils.text import plain_lines

HELP = """Mixup inference: defend image classifiers, detect adversarial inputs, measure honestly.

An experiment is a TOML file, or the name of a shipped one (digits, cifar10, cifar100, \
paper-cifar10, paper-cifar100). Everything it computes is stored in runs/NAME and never computed \
twice; after Ctrl-C, the same command continues.
"""


app = App(
    name="mixup-inference",
    help=HELP,
    help_epilogue=examples(
        "run                      # the paper's table on digits",
        "run my-experiment.toml   # your own experiment",
        "run cifar10 --dry-run    # what it would compute, and how long",
        "evaluate --help          # how to try it on a model of yours",
        "data get cifar10         # fetch and verify a data set",
        "runs verify              # check everything that was stored",
    ),
    help_format="plaintext",
    version=__version__,
)
app.command(data_app)
app.command(guard_app)
app.command(models_app)
app.command(runs_app)

SPEC = Parameter(help="Name of a shipped experiment, or path of a TOML file.")
Spec = Annotated[str, SPEC]
OptionalSpec = Annotated[str | None, SPEC]
Profile = Annotated[
    Flag,
    Parameter(
        help="At the end, print on stderr where the time went: network forward and backward, "
        "drawing, mixing, loading, ... No result changes; what is reused takes no time."
    ),
]

Loss = Annotated[
    float,
    Parameter(help="How many percentage points of clean accuracy may be lost for robustness."),
]
#: Commands whose help lists the names in the registries.
NAMING = ("evaluate", "analyze", "tune", "train")

WHOLE = Part()
COMMON = Common()
ALONE = Processes()
NO_MODEL = OneModel()


@app.command(
    help_epilogue=examples(
        "run", "run my-experiment.toml -o results", "run cifar10 -n", "run cifar10 --points 200"
    )
)
def run(
    spec: Spec = "digits",
    /,
    *,
    part: Part = WHOLE,
    processes: Processes = ALONE,
    common: Common = COMMON,
) -> None:
    """Train, attack, defend, measure and report."""
    from mixup_inference.cli.run import print_plan, work  # noqa: PLC0415
    from mixup_inference.experiments import spec as specs  # noqa: PLC0415

    loaded = specs.load_spec(spec, allow_code=common.allow_code)
    loaded = loaded if part.points is None else specs.on_points(loaded, part.points)
    loaded = specs.smoke(loaded) if part.smoke else loaded
    if part.dry_run:
        print_plan(loaded, common)
    else:
        work("run", loaded, common, processes)


@app.command(
    help_epilogue=examples("train digits", "train paper-cifar10 --devices 4 --device cuda")
)
def train(
    spec: Spec = "digits", /, *, processes: Processes = ALONE, common: Common = COMMON
) -> None:
    """Only train the models of an experiment."""
    _stage("train", spec, common, processes)


@app.command(help_epilogue=examples("attack digits"))
def attack(
    spec: Spec = "digits", /, *, processes: Processes = ALONE, common: Common = COMMON
) -> None:
    """Make the adversarial examples of an experiment (and train its models, if needed)."""
    _stage("attack", spec, common, processes)


@app.command(
    help_epilogue=examples(
        "evaluate digits",
        "evaluate --data cifar10 --weights model.safetensors --lam 0.5",
        "evaluate --data cifar10 --model resnet20 --weights their.th \\\n"
        "      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
        "evaluate --data cifar10 --weights model.safetensors \\\n      --attack adaptive",
        "evaluate --data folder:photos --model my_models:build \\\n"
        "      --size 224 --attack none --defense none",
    )
)
def evaluate(
    spec: OptionalSpec = None,
    /,
    *,
    one: OneModel = NO_MODEL,
    profile: Profile = False,
    processes: Processes = ALONE,
    common: Common = COMMON,
) -> None:
    """Measure the table of an experiment, or, with --data, one model with and without a defence.

    Whatever the experiment lacks is computed first. Only `run` writes the HTML report.
    """
    with profiled(common.device) if profile else nullcontext():
        if one == NO_MODEL:
            _stage("evaluate", spec or "digits", common, processes)
            return
        from mixup_inference.cli.evaluate_options import make_spec  # noqa: PLC0415
        from mixup_inference.cli.run import work  # noqa: PLC0415

        work("evaluate", make_spec(one, spec), common, processes)


@app.command(
    help_epilogue=examples(
        "analyze digits",
        "analyze digits --model mixup",
        "analyze --data cifar10 --weights model.safetensors --points 500",
    )
)
def analyze(
    spec: OptionalSpec = None, /, *, one: OneModel = NO_MODEL, common: Common = COMMON
) -> None:
    """Measure how linear a model is, the quantities of the paper's Section 3, and detection.

    This shows in advance whether mixup inference can work on a model.
    """
    from mixup_inference.cli.analyze import analyze_one  # noqa: PLC0415

    analyze_one(spec, one, common)


@app.command(
    help_epilogue=examples(
        "tune digits --model mixup --defense mi-ol",
        "tune --data cifar10 --weights model.safetensors --loss 1",
        "evaluate --data cifar10 --weights model.safetensors --preset mi-ol.toml",
    )
)
def tune(
    spec: OptionalSpec = None,
    /,
    *,
    loss: Loss = 2.0,
    one: OneModel = NO_MODEL,
    common: Common = COMMON,
) -> None:
    """Find the best settings of a defence for a model, and save them as a preset.

    They are chosen on one set of test images and reported on another.
    """
    from mixup_inference.cli.tune import tune_one  # noqa: PLC0415

    tune_one(spec, one, loss / 100, common)


@app.command(help_epilogue=examples("report runs/digits", "report runs/a runs/b -o compared.html"))
def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Folders of finished runs.")],
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="File for the comparison of several runs; comparison.html if not given.",
        ),
    ] = None,
) -> None:
    """Write a run's report again, or put several runs side by side on one page."""
    from mixup_inference.cli.report import write_reports  # noqa: PLC0415

    write_reports(runs, output)


def _stage(stage: str, spec: str, common: Common, processes: Processes) -> None:
    from mixup_inference.cli.run import work  # noqa: PLC0415 (--help must not wait for all this)
    from mixup_inference.experiments import load_spec  # noqa: PLC0415

    work(stage, load_spec(spec, allow_code=common.allow_code), common, processes)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings as one line for people; other libraries' as they are."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    ours = issubclass(category, MixupInferenceWarning)
    (file or sys.stderr).write(plain_lines(f"warning: {message}\n" if ours else text))


def _list_names_in_help(arguments: list[str]) -> None:
    """Append the names in the registries, plug-ins included, to the help that is asked for."""
    command = next((name for name in arguments if name in NAMING), None)
    if command is not None and {"--help", "-h"} & set(arguments):
        from mixup_inference.cli.catalogue import registered_names  # noqa: PLC0415

        app[command].help_epilogue = f"{app[command].help_epilogue}\n\n{registered_names()}"


def main() -> None:
    """The command ``mixup-inference``: exit code 0, 2 for bad input, 130 after Ctrl-C.

    Also 1, if something that was to be verified is not intact.
    """
    warnings.showwarning = _show_warning
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without ± shows a question mark
        sys.stdout.reconfigure(errors="replace")
    logging.basicConfig(format="%(message)s")
    _list_names_in_help(sys.argv[1:])
    try:
        app(exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except MixupInferenceError as error:
        sys.stderr.write(f"error: {plain_lines(str(error))}\n")
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        sys.stderr.write(plain_lines(f"error: {error.strerror or error}: {error.filename or ''}\n"))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
