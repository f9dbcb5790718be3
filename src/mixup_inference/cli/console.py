"""Lines on standard output, as they are, however narrow the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mixup_inference.utils.profiling import Stage, Stopwatch, timed
from mixup_inference.utils.text import plain_lines


def say(text: str) -> None:
    """Print text at once."""
    sys.stdout.write(f"{plain_lines(text)}\n")
    sys.stdout.flush()


def say_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of as many texts each, aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        say("  ".join(cells).rstrip())


def examples(*commands: str) -> str:
    """Lines for the end of a command's help."""
    return "Examples:\n" + "".join(f"  mixup-inference {command}\n" for command in commands)


@contextmanager
def profiled(device: str) -> Iterator[None]:
    """Time what is done inside, and print a table of it on stderr; also after Ctrl-C."""
    with Stopwatch() as watch:
        with timed(Stage.IMPORTS):
            import torch  # noqa: PLC0415 (its import is timed)

            import mixup_inference.cli.run  # noqa: F401, PLC0415 (likewise)
            from mixup_inference.utils.distributed import check_device  # noqa: PLC0415
        if check_device(device) != "cpu":
            watch.wait = torch.accelerator.synchronize
        try:
            yield
        except KeyboardInterrupt:
            _print_table(watch)
            raise
        _print_table(watch)


def _print_table(watch: Stopwatch) -> None:
    """A line for each stage that took time, and their sum."""
    from rich.console import Console  # noqa: PLC0415 (its import is part of what is timed)
    from rich.table import Table  # noqa: PLC0415

    seconds = watch.read()
    total = sum(seconds.values())
    table = Table("where the time went", box=None, pad_edge=False)
    for name in ("seconds", "share", "images", "images/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage, spent in seconds.items():
        images = watch.images if stage is Stage.FORWARD else 0
        counts = (f"{images:,}", f"{images / spent:,.0f}") if images else ()
        if spent:
            table.add_row(stage.value, f"{spent:.2f}", f"{spent / total:.1%}", *counts)
    table.add_row("total", f"{total:.2f}", f"{1:.1%}")
    console = Console(stderr=True)
    console.print()
    console.print(table)
