"""Tables of the page, and numbers with their range."""

from __future__ import annotations

from collections.abc import Mapping


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table: the first column is words, the others are numbers."""
    rule = "|---|" + "---:|" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def ranged(found: Mapping[str, float], digits: int = 2) -> str:
    """The median with the lowest and the highest."""
    low, high = (f"{found[key]:.{digits}f}" for key in ("low", "high"))
    return f"{found['median']:.{digits}f} ({low} to {high})"
