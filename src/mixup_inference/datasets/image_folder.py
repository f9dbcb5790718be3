"""A user's own images: a folder for each class.

Either ``path/train/CLASS/...`` and ``path/test/CLASS/...``, or ``path/CLASS/...`` undivided. Files
that cannot be read are left out and named in a warning; none can stop the others, or have more
pixels decoded than the limit.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from mixup_inference.datasets.base import Dataset, Size, check_memory, check_size
from mixup_inference.datasets.image_file import (
    EXTENSIONS,
    ImageFile,
    inspect_image,
    pillow_warnings,
    read_image,
)
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.utils.text import plain

WORKERS = min(4, os.cpu_count() or 1)

LAYOUT = (
    "Put the images of each class in a folder of its own: CLASS/..., or train/CLASS/... and "
    "test/CLASS/... (PNG, JPEG or WebP)."
)

#: What people call the parts of a data set.
PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})

T = TypeVar("T")


def load_folder(
    path: Path,
    *,
    size: Size = None,
    channels: int | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """The images below ``path`` as uint8, by class and file name, training before test.

    Images are turned upright by their Exif orientation, 16-bit grey is scaled to 8 bits, and what
    is transparent is laid on white, because the colour stored below it is arbitrary.

    Args:
        path: Holds ``train/CLASS/...`` and perhaps ``test/CLASS/...``, or ``CLASS/...``. Folders
            inside a class belong to it. Passed over are hidden files, other extensions than those
            of PNG, JPEG and WebP, and links to folders inside a class.
        size: The side of a square, or (height, width). Each image is scaled until it just covers
            that, and its centre is cut out. None: all have one size already.
        channels: 1 for grey, 3 for colour; None: 1 if every readable image is stored as grey.
        progress: Who is told how far it is.
    """
    wanted = check_size(size)
    if channels not in {None, 1, 3}:
        raise InputError(f"channels must be 1 (grey), 3 (colour) or None; saw {channels!r}.")
    names, files = _list_files(path)
    with pillow_warnings():
        _on_threads(inspect_image, files, "check images", progress)
        found = _readable(files, names)
        shape = (channels or _depth(found), *(wanted or _common_size(found)))
        check_memory(len(found), shape)
        images = torch.empty((len(found), *shape), dtype=torch.uint8)
        rows = list(zip(found, images.numpy(), strict=True))
        _on_threads(read_image, rows, "read images", progress)
    kept = _readable(files, names)
    for row, old in enumerate(row for row, file in enumerate(found) if file.problem is None):
        if row != old:  # close the gaps in place
            images[row] = images[old]
    depth = channels or _depth(kept)  # 1 after all if only unreadable images had colour
    images = images[: len(kept), :depth].contiguous()
    if lost := [file for file in files if file.problem is not None]:
        text = f"{len(lost):,} of {len(files):,} image files cannot be read and are left out: "
        warnings.warn(MixupInferenceWarning(f"{text}{_reasons(lost)}."), stacklevel=2)
    labels = torch.tensor([file.label for file in kept])
    train = sum(not file.test for file in kept)
    test = [(images[train:], labels[train:])] if train < len(kept) else []
    return Dataset.of(names, (images[:train], labels[:train]), *test)


def _list_files(path: Path) -> tuple[tuple[str, ...], list[ImageFile]]:
    """The class names, and the image files: training before test, by class, by name."""
    train, test = _divisions(path)
    folders = _class_folders(train)
    labels = {folder.name: label for label, folder in enumerate(folders)}
    if len(labels) < 2:
        raise InputError(
            f"{train} has only one class folder, {folders[0].name!r}; two are needed. {LAYOUT}"
        )
    tests = _class_folders(test) if test is not None else []
    strange = [folder.name for folder in tests if folder.name not in labels]
    if strange:
        raise InputError(
            f"{test} has classes that {train} does not have: {', '.join(strange)}. "
            "Rename these folders, or add training images of these classes."
        )
    files = [
        ImageFile(image, labels[folder.name], test=part is tests)
        for part in (folders, tests)
        for folder in part
        for image in sorted(_images_below(folder), key=Path.as_posix)
    ]
    if tests and not any(file.test for file in files):
        raise InputError(f"there are no images in the classes of {test}. Add some, or remove it.")
    return tuple(plain(name) for name in labels), files


def _divisions(path: Path) -> tuple[Path, Path | None]:
    """The folder of the classes' folders for training, and the one for test."""
    names = [folder.name for folder in _entries(path)[0]]
    if "train" not in names:
        if names and all(name.lower() in PARTS and _has_folders(path / name) for name in names):
            raise InputError(
                f"{path} has the folders {', '.join(names)}, which look like parts of a data set "
                "and not like classes. Call them train and test, in small letters."
            )
        return path, None
    if "test" in names:
        return path / "train", path / "test"
    folders, images = _entries(path / "train")
    if images or not folders:  # itself a class: of vehicles, say
        return path, None
    if len(names) > 1:
        others = ", ".join(name for name in names if name != "train")
        raise InputError(
            f"{path} has the folder train with classes in it and beside it {others}, but no "
            "folder test. Call the folder of the test images test, and move any other away."
        )
    return path / "train", None


def _has_folders(folder: Path) -> bool:
    """Whether a folder holds folders and no images of its own."""
    folders, images = _entries(folder)
    return bool(folders) and not images


def _class_folders(folder: Path) -> list[Path]:
    folders, images = _entries(folder)
    if images:
        raise InputError(
            f"{folder} has images outside of any class folder, such as {images[0].name}. {LAYOUT}"
        )
    if not folders:
        raise InputError(f"{folder} has no class folders. {LAYOUT}")
    return folders


def _images_below(folder: Path) -> Iterator[Path]:
    left = [folder]
    while left:
        folders, images = _entries(left.pop())
        yield from images
        left += [inner for inner in folders if not inner.is_symlink()]  # one might lead back here


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the image files directly in a folder, by name, without hidden ones."""
    folders, images = [], []
    try:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.suffix.lower() in EXTENSIONS:
                images.append(entry)
    except FileNotFoundError:
        raise InputError(f"there is no folder {folder}. {LAYOUT}") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is a file; give a folder. {LAYOUT}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot look into {folder}: {reason}.") from None
    return folders, images


def _on_threads(
    function: Callable[[T], None], items: Sequence[T], title: str, progress: Progress
) -> None:
    """Call the function with every item, on a few threads."""
    with progress.task(title, len(items)) as task, ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(function, items):  # which, after Ctrl-C, cancels the rest
            task.advance()


def _readable(files: Sequence[ImageFile], names: Sequence[str]) -> list[ImageFile]:
    """The files without a problem; every class must have some to train with."""
    kept = [file for file in files if file.problem is None]
    trained = {file.label for file in kept if not file.test}
    for label, name in enumerate(names):
        if label not in trained:
            lost = [file for file in files if file.label == label and not file.test]
            raise InputError(
                f"class {name!r} has no training image that can be read: "
                f"{_reasons(lost) or 'there are no PNG, JPEG or WebP files'}. "
                "Add images to its folder, or remove the folder."
            )
    tests = [file for file in files if file.test]
    if tests and all(file.problem is not None for file in tests):
        raise InputError(f"no test image can be read: {_reasons(tests)}. Add some that can.")
    return kept


def _reasons(files: Sequence[ImageFile], most: int = 5) -> str:
    """The first few files and what is wrong with each."""
    more = [f"and {len(files) - most} more"] if len(files) > most else []
    return "; ".join([f"{file.path} ({file.problem})" for file in files[:most]] + more)


def _common_size(files: Sequence[ImageFile]) -> tuple[int, int]:
    by_area = sorted(files, key=lambda file: (math.prod(file.size), file.size))
    small, large = (f"{f.size[1]}x{f.size[0]} ({f.path})" for f in (by_area[0], by_area[-1]))
    if by_area[0].size != by_area[-1].size:
        raise InputError(
            f"the images have different sizes, from {small} to {large}. "
            "Give the size that all shall have: size=32 in Python, --size 32 on the command line."
        )
    return by_area[0].size


def _depth(files: Sequence[ImageFile]) -> int:
    return 1 if all(file.grey for file in files) else 3
