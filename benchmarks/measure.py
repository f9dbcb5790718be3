"""Timing by ratios: the jobs take turns, round by round, so that a slow moment hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Job = Callable[[], Any]


def take_turns(jobs: Mapping[str, Job], rounds: int) -> dict[str, list[float]]:
    """Seconds of each job in each round, after one round that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if number:
                spent[name].append(time.perf_counter() - start)
    return spent


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """The median over rounds of one job's time over another's, and the lowest and the highest."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def spread(each: list[float]) -> dict[str, float]:
    """The median of some numbers, and the lowest and the highest."""
    return {"median": statistics.median(each), "low": min(each), "high": max(each)}
