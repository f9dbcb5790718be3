"""Reporting: tables, figures, HTML pages, and progress on the terminal, all from results.json."""

from typing import Any

from mixup_inference.reporting.console import ConsoleCallback
from mixup_inference.reporting.report import html, write_comparison, write_report, write_results
from mixup_inference.reporting.schema import SCHEMA, Results, check_results

__all__ = [
    "SCHEMA",
    "ConsoleCallback",
    "Results",
    "check_results",
    "html",
    "write_comparison",
    "write_report",
    "write_results",
]


def __getattr__(name: str) -> Any:
    if name != "ConsoleListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings  # noqa: PLC0415

    message = "ConsoleListener is now called ConsoleCallback"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return ConsoleCallback
