"""Lines on standard output, as they are, however narrow the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mixup_inference.text import plain_lines


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
