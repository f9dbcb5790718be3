"""The page's sections on growth and on a pool on disk, and the plot of growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from benchmarks.markdown import ranged, table

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#555555"
MIB = 2**20
NAMES = {"draws": "draws N", "batch": "batch", "pixels": "side of the image",
         "pool": "images in the pool", "classes": "classes", "chunk": "chunk"}  # fmt: skip


def growth(found: Mapping[str, Any], folder: Path) -> list[str]:
    """The section on growth; writes growth.svg and growth.png."""
    _plot(found, folder)
    rows = []
    for name, entry in found.items():
        points = entry["points"]
        rows.append(
            [
                NAMES[name],
                f"{short(points[0]['value'])} to {short(points[-1]['value'])}",
                str(entry["expected"]),
                ranged(entry["slope"]),
                ", ".join(mib(point["memory"]) for point in points),
                ", ".join(mib(point["memory_in_one_chunk"]) for point in points)
                if name in ("draws", "batch")
                else "",
            ]
        )
    head = ["what grows", "range", "power expected", "power of time", "peak memory (MiB)",
            "in one chunk (MiB)"]  # fmt: skip
    return [
        "## Growth",
        "",
        "Mixup inference around a very small network. One number grows at a time; the others",
        "stay at 30 draws, 8 images, a pool of 5,000, 10 classes and 32x32 pixels (15 draws",
        "and 4 images while the side of the image grows, 32 draws and 64 images while the",
        "chunk does). Time grows with a power of the number, which should be about 1 for",
        "draws, batch and pixels (the side squared), and about 0 for the others. Peak memory",
        "is what one call takes beyond the network, the pool and its images, measured in a",
        "new process for each value. It rises until a chunk is full (1,024 images of this",
        "size), and hardly from then on, whatever N and the batch are; with everything in one",
        "chunk, it keeps rising. For large images it is mostly F's own, because at least 8 of",
        "them pass through F at once.",
        "",
        "![time and peak memory against each number](growth.png)",
        "",
        *table(head, rows),
    ]


def pool(found: Mapping[str, Any]) -> list[str]:
    """The section on a pool that is mapped from a file."""
    names = {"draw": "drawing alone", "end_to_end": "mixup inference"}
    rows = [[name, ranged(found["warm"][key])] for key, name in names.items()]
    fewer = found["images"] < found["wanted"]
    return [
        "## A pool on disk",
        "",
        f"{found['images']:,} uint8 images of 32x32 pixels"
        + (f" (not {found['wanted']:,}: the disk had no room)" if fewer else "")
        + ", mapped from a file,",
        "against the same in memory: the ratio of the times, so 1.00 is as fast. This is with the",
        "file in the operating system's cache. When it was not there yet, the first ten thousand",
        f"images that were drawn took {found['cold']:.0f} times as long as from memory.",
        "",
        *table(["what", "disk over memory"], rows),
    ]


def short(value: int) -> str:
    """A number as a tick: 1,000 is 1k.

    >>> [short(n) for n in (30, 1000, 1_000_000)]
    ['30', '1k', '1M']
    """
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if value >= size and value % size == 0:
            return f"{value // size}{letter}"
    return str(value)


def mib(size: int | None) -> str:
    """Bytes as whole MiB."""
    return "-" if size is None else f"{size / MIB:.0f}"


def _plot(found: Mapping[str, Any], folder: Path) -> None:
    figure, axes = plt.subplots(
        2, len(found), figsize=(12, 5), layout="constrained", sharex="col", sharey="row"
    )
    for column, (name, entry) in enumerate(found.items()):
        points = entry["points"]
        values = [point["value"] for point in points]
        time, memory = axes[:, column]
        _draw_time(time, values, entry, power=2 if name == "pixels" else 1)
        for key, colour, style in (("memory_in_one_chunk", ORANGE, "--"), ("memory", BLUE, "-")):
            sizes = np.array([point[key] for point in points], dtype=float) / MIB
            memory.plot(values, sizes, marker="o", color=colour, linestyle=style)
        memory.set_xlabel(NAMES[name])
        for axis in (time, memory):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(values, labels=[short(value) for value in values])
            axis.minorticks_off()
            axis.grid(color="#dddddd")
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("time (s)")
    axes[1, 0].set_ylabel("peak memory (MiB)")
    axes[1, 0].set_ylim(bottom=5)
    axes[1, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in axes[:, 0]:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    lines = [
        Line2D([], [], color=BLUE, marker="o", label="measured"),
        Line2D([], [], color=GREY, linestyle=":", label="power expected"),
        Line2D([], [], color=ORANGE, marker="o", linestyle="--", label="all in one chunk"),
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=3, frameon=False)
    for ending in ("png", "svg"):
        figure.savefig(folder / f"growth.{ending}", dpi=130)
    plt.close(figure)


def _draw_time(axis: Axes, values: Sequence[int], entry: Mapping[str, Any], power: int) -> None:
    """Median and range over rounds, and a line of the expected power through their middle."""
    low, median, high = (
        np.array([point["seconds"][key] for point in entry["points"]])
        for key in ("low", "median", "high")
    )
    expected = np.array(values, dtype=float) ** (power * entry["expected"])
    middle = np.exp(np.mean(np.log(median / expected)))
    axis.plot(values, middle * expected, color=GREY, linestyle=":")
    axis.fill_between(values, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axis.plot(values, median, marker="o", color=BLUE)
