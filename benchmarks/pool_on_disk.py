"""A pool of a million images that is mapped from a file, against the same pool in memory."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.growth import eight_bits
from benchmarks.measure import Job, ratio, take_turns
from mixup_inference import MixupInference, Pool, create_model
from mixup_inference.draws import Draws, make_key

IMAGES = 1_000_000
SHAPE = (3, 32, 32)
CALLS = 10  # of 1,024 drawn images each, in one measurement of drawing alone


def against_memory(rounds: int) -> dict[str, Any]:
    """Time with the pool on disk over time with it in memory: of a draw alone, and end to end."""
    with tempfile.TemporaryDirectory() as folder:
        room = int(0.75 * shutil.disk_usage(folder).free)
        count = min(IMAGES, room // int(np.prod(SHAPE)))
        images, labels = eight_bits((count, *SHAPE)), torch.arange(count) % 10
        path = Path(folder) / "images.bin"
        write_cold(images, path)
        mapped = np.memmap(path, dtype=np.uint8, mode="r", shape=images.shape)
        jobs: dict[str, dict[str, Job]] = {
            where: {"draw": drawer(pool), "end_to_end": classifier(pool)}
            for where, pool in (("memory", Pool(images, labels)), ("disk", Pool(mapped, labels)))
        }
        jobs["memory"]["draw"]()  # libraries start up
        cold = seconds(jobs["disk"]["draw"]) / seconds(jobs["memory"]["draw"])
        out: dict[str, Any] = {"images": count, "wanted": IMAGES, "cold": cold, "warm": {}}
        int(mapped.reshape(-1)[::1024].sum())  # every page is now in the cache of the system
        for what in ("draw", "end_to_end"):
            spent = take_turns({where: jobs[where][what] for where in jobs}, rounds)
            out["warm"][what] = ratio(spent["disk"], spent["memory"])
        del mapped, jobs
    return out


def write_cold(images: Tensor, path: Path) -> None:
    """Write a file, and ask the system to keep none of it in its cache."""
    with path.open("wb") as file:
        images.numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drawer(pool: Pool) -> Job:
    """Draws 1,024 images from everywhere in the pool, other ones each time."""
    streams = itertools.count()

    def job() -> None:
        for _ in range(CALLS):
            bits = Draws.once(make_key(0, next(streams)), torch.arange(1024)).bits(0)[:, 0]
            pool.pixels(pool.draw(bits.remainder(pool.classes), bits))

    return job


def classifier(pool: Pool) -> Job:
    """Classifies 32 images with 30 draws each, around a small, fast network."""
    defense = MixupInference(create_model("small_cnn", 10, width=8).eval(), pool)
    return partial(defense, torch.rand(32, *SHAPE))


def seconds(job: Job) -> float:
    """How long a job takes once."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
