"""Reporting: tables, figures, one HTML page, and what the terminal shows."""

from mixup_inference.reporting.console import ConsoleCallback
from mixup_inference.reporting.report import html, write_comparison, write_report, write_results

__all__ = ["ConsoleCallback", "html", "write_comparison", "write_report", "write_results"]
