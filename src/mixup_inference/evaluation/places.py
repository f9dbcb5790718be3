"""Where an experiment runs and writes: checked before anything is computed."""

from __future__ import annotations

from pathlib import Path

import torch

from mixup_inference.errors import InputError


def check_device(device: str) -> str:
    """A device that is there; "auto" is the first of cuda, mps, cpu that is."""
    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if device == "auto":
        return there[0]
    if device not in there:
        raise InputError(f"there is no device {device!r} here; available: {', '.join(there)}.")
    return device


def make_folder(folder: Path) -> None:
    """Make a folder that can be written to, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # other processes may look at the same time
    except OSError as error:
        raise InputError(
            f"cannot write to the output folder {folder}: {error.strerror}. "
            "Choose another with --output."
        ) from None
