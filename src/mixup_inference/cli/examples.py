"""Examples at the end of a command's help."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """Lines for the end of a command's help."""
    return "Examples:\n" + "".join(f"  mixup-inference {command}\n" for command in commands)
