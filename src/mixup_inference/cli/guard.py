"""The commands `guard ...`: calibrate a guard, use it on pictures, check, export and serve it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mixup_inference.cli.console import examples, say, say_columns
from mixup_inference.cli.options import DataRoot, Flag
from mixup_inference.errors import InputError
from mixup_inference.serving.limits import Limits

if TYPE_CHECKING:
    from torch import Tensor

    from mixup_inference.guard import Guard

guard_app = App(
    name="guard",
    help="A classifier that flags suspicious inputs: calibrate, use, check, export and serve it.",
    help_epilogue=examples(
        "guard fit                                   # on digits, without a download",
        "guard fit -o my-guard --data cifar10 --weights cifar10-mixup --evaluate",
        "guard predict my-guard picture.png",
        "guard check my-guard new-clean-pictures/",
        "guard export my-guard guard.onnx",
        "guard serve my-guard",
    ),
    help_format="plaintext",
)

Folder = Annotated[Path, Parameter(help="The guard's folder, which `guard fit` wrote.")]
Pictures = Annotated[
    tuple[Path, ...],
    Parameter(help="PNG, JPEG or WebP files of any size, or folders of such files."),
]
Json = Annotated[Flag, Parameter(name="--json", help="Print a line of JSON for each picture.")]

#: Clean images held out for each purpose, if the user does not say.
POINTS, TESTED = 500, 100


@Parameter(name="*")
@dataclass(frozen=True)
class Fit:
    """What a guard is made of."""

    data: str = "digits"
    "Data set: a name of `data list`, or folder:PATH. Inputs are mixed with its training images."

    model: str | None = None
    "Network: a name such as resnet20, or package.module:factory for your own."

    weights: str | None = None
    "Its weights: a file, a saved model's folder, or a name of `models list` (no --model needed)."

    mean: str | None = None
    "Mean that the model subtracts from pixels in [0, 1]: one number, or 0.485,0.456,0.406."

    std: str | None = None
    "Standard deviation that it divides them by, likewise."

    size: int | None = None
    "Resize the images to this side, in pixels."

    false_positive_rate: float = 0.05
    "Share of clean images that may be flagged."

    points: int = POINTS
    "Number of clean images held out for calibration; more make the rate more certain."

    per_class: int = 100
    "Clean images of each class that are stored with the guard; 0 for all training images."

    lam_detect: float | None = None
    "Share of the input in the mixtures of MI-PL, which detects: by default 0.5."

    lam_defend: float | None = None
    "The same for MI-OL, which answers for flagged inputs: by default 0.4."

    preset: str | None = None
    "Settings by name (cifar10/mixup+mi-combined), or a file that `tune` wrote."

    tune: Flag = False
    "Choose both shares on further clean images that PGD attacks."

    evaluate: Flag = False
    "Attack the guard, and write into its card how often the attacks succeed."

    eps: str = "8/255"
    "Largest change of a pixel by these attacks; by default 0.15 on the digits."

    draws: int = 30
    "Largest number of mixtures for each image."

    seed: int = 0
    "Seed of the choice of held-out images, and of the draws."


@guard_app.command(
    help_epilogue=examples(
        "guard fit",
        "guard fit --data cifar10 --weights cifar10-mixup --tune --evaluate -o my-guard",
        "guard fit --data folder:photos --model my_models:build --weights w.safetensors --size 224",
    )
)
def fit(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The guard's folder.")] = Path(
        "my-guard"
    ),
    what: Fit = Fit(),  # noqa: B008 (frozen)
    data_root: DataRoot = None,
    quiet: Annotated[Flag, Parameter(name=["--quiet", "-q"])] = False,
) -> None:
    """Calibrate a guard for a trained model, and write it as one folder."""
    from mixup_inference.cli.guard_fit import fit_guard  # noqa: PLC0415 (--help without torch)

    fit_guard(what, output, data_root, quiet=quiet)


@guard_app.command(
    help_epilogue=examples(
        "guard predict my-guard picture.png", "guard predict my-guard pictures/ --json > answers"
    )
)
def predict(
    folder: Folder,
    pictures: Pictures,
    /,
    *,
    as_json: Json = False,
    seed: Annotated[int | None, Parameter(help="Makes the draws the same at every call.")] = None,
) -> None:
    """Classify pictures, and flag suspicious ones.

    An attack that knows the guard can avoid the flag. A file that cannot be read is
    named and skipped, and the exit code is then 1.
    """
    guard = _load(folder)
    rows, broken = [], 0
    for batch in _batches(guard, pictures):
        broken += len(batch.problems)
        for path, problem in batch.problems:
            sys.stderr.write(f"{path}: {problem}\n")
        if not batch.paths:
            continue
        lines = _lines(guard, batch, seed)
        if as_json:
            for line in lines:
                say(json.dumps(line))
        rows += [] if as_json else lines
    if rows:
        _table(rows)
    if broken:
        sys.exit(1)


@guard_app.command(help_epilogue=examples("guard check my-guard new-clean-pictures/"))
def check(folder: Folder, pictures: Pictures, /) -> None:
    """Check whether the false alarms on new clean pictures still fit the calibration.

    The exit code is 1 if they do not.
    """
    import torch  # noqa: PLC0415

    from mixup_inference.guard.calibration import drift  # noqa: PLC0415

    guard = _load(folder)
    batches = list(_batches(guard, pictures))
    for path, problem in (pair for batch in batches for pair in batch.problems):
        sys.stderr.write(f"{path}: {problem}\n")
    flags = [guard.predict(batch.images).is_adversarial for batch in batches if batch.paths]
    if not flags:
        raise InputError("no picture could be read.")
    found = drift(guard.calibration, torch.cat(flags))
    rate = 100 * found.flagged / found.points
    say(
        f"{found.flagged} of {found.points} clean pictures are flagged ({rate:.1f}%); "
        f"{found.expected:.1f} were expected."
    )
    if found.fits:
        say(f"That fits (p = {found.probability:.2g}).")
        return
    say(
        f"That does not fit (p = {found.probability:.2g}): these pictures differ from those of the "
        "calibration. Calibrate again with `guard fit`."
    )
    sys.exit(1)


@guard_app.command(
    help_epilogue=examples(
        "guard export my-guard guard.onnx            # ONNX Runtime",
        "guard export my-guard guard.onnx --narrow   # OpenVINO",
        "guard export my-guard guard.pt2             # torch.export.load",
    )
)
def export(
    folder: Folder,
    file: Annotated[Path, Parameter(help="What to write.")],
    /,
    *,
    format: Annotated[  # noqa: A002 (the option's name)
        Literal["onnx", "torch"] | None,
        Parameter(help="By default what the name says: onnx for .onnx, torch for .pt2."),
    ] = None,
    narrow: Annotated[
        Flag, Parameter(help="For OpenVINO, whose integers have 32 bits; seeds from 0 to 2^31 - 1.")
    ] = False,
) -> None:
    """Write the whole guard as one file that runs without this package.

    Inputs: images (float, NCHW, in [0, 1]), and a seed (int64) for each.
    The file is compared with the guard before it is kept.
    ONNX needs `pip install mixup-inference[engines]`.
    """
    from mixup_inference.guard.export import data_of, export_guard  # noqa: PLC0415

    path = export_guard(_load(folder), file, format, narrow=narrow)
    for part in (path, data_of(path)):
        if part.exists():
            say(f"{part} ({part.stat().st_size / 1e6:.1f} MB)")
    say("It answers as the guard does, for images of the pool.")


@Parameter(name="*")
@dataclass(frozen=True)
class Serve:
    """Where a guard is served, and what the server accepts."""

    host: str = "127.0.0.1"
    "Address to listen on; only programs of this machine reach the default."

    port: int = 8080
    "Port to listen on; 0 for any that is free."

    name: str = "guard"
    "Name of the model in the addresses /v2/models/NAME/..."

    token_file: Path | None = None
    "File with the token that requests must carry; else $MIXUP_INFERENCE_TOKEN, else none."

    max_batch: int = Limits.max_batch
    "Images computed at once."

    max_wait_ms: float = Limits.max_wait_ms
    "Milliseconds that an image waits for others to share its batch."

    max_queue: int = Limits.max_queue
    "Images that wait, of all requests together; more are answered with 429."

    max_body: int = Limits.max_body
    "Bytes of a request; more are answered with 413."

    max_pixels: int = Limits.max_pixels
    "Pixels of a picture."

    timeout: float = Limits.timeout
    "Seconds for sending a request, again for its answer, and for shutting down."

    max_connections: int = Limits.max_connections
    "Connections open at once."

    allow_seeds: Flag = False
    "Requests may name their seeds. Whoever knows the seeds attacks a fixed function."


@guard_app.command(
    help_epilogue=examples(
        "guard serve my-guard", "guard serve my-guard --host 0.0.0.0 --token-file token.txt"
    )
)
def serve(
    folder: Folder,
    /,
    *,
    what: Serve = Serve(),  # noqa: B008 (frozen)
    quiet: Annotated[Flag, Parameter(name=["--quiet", "-q"], help="No line a request.")] = False,
) -> None:
    """Answer requests over HTTP: the Open Inference Protocol, and pictures at /classify.

    An attack that knows the guard is not flagged. SIGTERM ends it when all that was accepted is
    answered. Needs `pip install mixup-inference[serve]`.
    """
    from mixup_inference.cli.guard_serve import serve_guard  # noqa: PLC0415 (--help without it)

    serve_guard(folder, what, quiet=quiet)


@dataclass(frozen=True)
class Batch:
    """Some pictures that could be read, and some that could not."""

    paths: list[Path]
    images: Tensor
    problems: list[tuple[Path, str]]


def _load(folder: Path) -> Guard:
    from mixup_inference.guard import Guard  # noqa: PLC0415

    return Guard.load(folder)


def _batches(guard: Guard, pictures: Sequence[Path], size: int = 64) -> Iterator[Batch]:
    """All pictures of files and folders, read in batches."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from mixup_inference.datasets.image_file import read_picture  # noqa: PLC0415
    from mixup_inference.utils.progress import RichProgress  # noqa: PLC0415

    if not pictures:
        raise InputError("give pictures, or folders of them.")
    files = list(_files(pictures))
    shape: Any = tuple(guard.pool.images.shape[1:])
    with RichProgress().task("pictures", len(files)) as task:
        for start in range(0, len(files), size):
            paths, rows, problems = [], [], []
            for path in files[start : start + size]:
                try:
                    rows.append(read_picture(path, shape))
                    paths.append(path)
                except InputError as error:
                    problems.append((path, str(error).removeprefix(f"{path}: ")))
            images = torch.from_numpy(np.stack(rows)) if rows else torch.empty(0)
            yield Batch(paths, images, problems)
            task.advance(len(paths) + len(problems))


def _files(pictures: Sequence[Path]) -> Iterator[Path]:
    """Files as they are given, and pictures below folders."""
    from mixup_inference.datasets.image_file import EXTENSIONS  # noqa: PLC0415

    for path in pictures:
        if path.is_dir():
            inside = (p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
            yield from sorted(inside)
        else:
            yield path


def _lines(guard: Guard, batch: Batch, seed: int | None) -> list[dict[str, Any]]:
    """What the guard says of a batch, a dictionary for each picture."""
    import torch  # noqa: PLC0415

    from mixup_inference.draws import derive_seed  # noqa: PLC0415

    seeds = None
    if seed is not None:
        seeds = torch.tensor([derive_seed(seed, path.name) for path in batch.paths])
    answer, names = guard.predict(batch.images, seeds=seeds), guard.class_names
    return [
        {
            "file": str(path),
            "label": names[int(answer.label[row])],
            "probability": round(float(answer.probabilities[row].max()), 4),
            "undefended_label": names[int(answer.undefended_label[row])],
            "score": round(float(answer.score[row]), 4),
            "is_adversarial": bool(answer.is_adversarial[row]),
            "draws": int(answer.draws[row]),
        }
        for row, path in enumerate(batch.paths)
    ]


def _table(lines: list[dict[str, Any]]) -> None:
    head = ("file", "label", "probability", "flagged", "score", "the network alone")
    rows = [
        (
            line["file"],
            line["label"],
            f"{line['probability']:.2f}",
            "yes" if line["is_adversarial"] else "no",
            f"{line['score']:+.3f}",
            line["undefended_label"],
        )
        for line in lines
    ]
    say_columns([head, *rows])
