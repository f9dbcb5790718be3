"""Reporting: tables, figures, HTML pages, and progress on the terminal, all from results.json."""

from mixup_inference.reporting.console import ConsoleCallback
from mixup_inference.reporting.report import html, write_comparison, write_report, write_results
from mixup_inference.reporting.schema import SCHEMA, Results, check_results
from mixup_inference.utils.renaming import renamed

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

__getattr__ = renamed(__name__, {"ConsoleListener": "mixup_inference.reporting:ConsoleCallback"})
