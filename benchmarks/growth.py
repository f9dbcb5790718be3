"""How time and peak memory of mixup inference grow with draws, batch, image, pool and classes."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import spread, take_turns
from mixup_inference import MixupInference, Pool, create_model

#: Linux resets a process's highest mark of memory when 5 is written here.
RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Scene:
    """One call of mixup inference around a small, fast network."""

    draws: int = 30
    batch: int = 8
    pool: int = 5000
    classes: int = 10
    side: int = 32
    chunk: int | None = None

    def make(self) -> tuple[MixupInference, Tensor]:
        """The defence, and images for it."""
        shape = (3, self.side, self.side)
        labels = torch.arange(self.pool) % self.classes
        pool = Pool(eight_bits((self.pool, *shape)), labels)
        model = create_model("small_cnn", self.classes, width=8).eval()
        defense = MixupInference(model, pool, draws=self.draws, chunk=self.chunk)
        return defense, torch.rand(self.batch, *shape)


@dataclass(frozen=True)
class Axis:
    """One number of a scene that grows, and the power of it that time should grow with."""

    field: str
    values: tuple[int, ...]
    expected: int
    scene: Scene = Scene()
    power: int = 1  # what grows is this power of the number: an image has side**2 pixels

    def scenes(self) -> list[Scene]:
        """One scene for each value."""
        return [replace(self.scene, **{self.field: value}) for value in self.values]


AXES = {
    "draws": Axis("draws", (10, 30, 100, 300, 1000), expected=1),
    "batch": Axis("batch", (4, 16, 64, 256), expected=1),
    "pixels": Axis("side", (32, 64, 128, 224), 1, Scene(draws=15, batch=4, pool=500), power=2),
    "pool": Axis("pool", (1_000, 10_000, 100_000, 1_000_000), expected=0),
    "classes": Axis("classes", (10, 100, 1000), expected=0),
    "chunk": Axis("chunk", (32, 128, 512, 2048), 0, Scene(draws=32, batch=64)),
}


def growth(rounds: int) -> dict[str, Any]:
    """For each axis: seconds and peak memory at each value, and the power that time grows with."""
    return {name: _measure(axis, rounds) for name, axis in AXES.items()}


def _measure(axis: Axis, rounds: int) -> dict[str, Any]:
    scenes = axis.scenes()
    made = [scene.make() for scene in scenes]
    jobs = {str(i): partial(defense, x) for i, (defense, x) in enumerate(made)}
    spent = list(take_turns(jobs, rounds).values())
    del made, jobs  # the children need the room
    grown = [value**axis.power for value in axis.values]
    memory = peak_memories(scenes)
    unbounded: list[int | None] = [None] * len(scenes)
    if axis.field in ("draws", "batch"):
        unbounded = peak_memories(replace(s, chunk=s.draws * s.batch) for s in scenes)
    return {
        "scene": vars(axis.scene),
        "expected": axis.expected,
        "slope": spread([slope(grown, seconds) for seconds in zip(*spent, strict=True)]),
        "points": [
            {"value": v, "seconds": spread(s), "memory": m, "memory_in_one_chunk": u}
            for v, s, m, u in zip(axis.values, spent, memory, unbounded, strict=True)
        ],
    }


def slope(values: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of the values that fits best: least squares on logarithms."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def peak_memories(scenes: Iterable[Scene]) -> list[int | None]:
    """Of each scene in a process of its own, so that none sees memory that another left."""
    if not RESET.exists():
        return [None for _ in scenes]
    start = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=start, max_tasks_per_child=1) as children:
        return list(children.map(peak_memory, scenes))


def peak_memory(scene: Scene) -> int:
    """Bytes that one call takes at its highest, beyond the network, the pool and the images."""
    defense, x = scene.make()
    MixupInference(defense.model, defense.pool, draws=1, chunk=1)(x[:1])  # libraries start up
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # what was freed is given back, so that the call has to ask for it
    RESET.write_text("5")
    before = _highest()
    defense(x)
    return _highest() - before


def _highest() -> int:
    """The highest mark of this process's resident memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def eight_bits(shape: tuple[int, ...]) -> Tensor:
    """Random uint8 images that are quickly made: beyond 16 MB the same bytes again and again."""
    block = torch.randint(0, 256, (2**24,), dtype=torch.uint8)
    out = torch.empty(math.prod(shape), dtype=torch.uint8)
    for part in out.split(len(block)):
        part.copy_(block[: len(part)])
    return out.view(shape)
