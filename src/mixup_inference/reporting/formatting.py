"""Numbers, intervals and settings as text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

from mixup_inference.metrics.accuracy import IntervalEstimate


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; None becomes an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def capitalize(text: str) -> str:
    """The text with its first letter in upper case, and the rest as it is."""
    return text[:1].upper() + text[1:]


def percent(share: float, total: float = 0) -> str:
    """A share as a percentage with one decimal; two, if it is one of 5,000 points or more.

    >>> percent(0.91734), percent(0.9173, total=10_000)
    ('91.7', '91.73')
    """
    return f"{100 * share:.{2 if total >= 5000 else 1}f}"


def format_interval(cell: Mapping[str, Any], total: float) -> str:
    """An accuracy and its 95% interval, in percent.

    >>> format_interval({"accuracy": 0.942, "low": 0.918, "high": 0.9593}, 500)
    '94.2 [91.8, 95.9]'
    """
    value, low, high = (percent(cell[key], total) for key in ("accuracy", "low", "high"))
    return f"{value} [{low}, {high}]"


def format_margin(cell: Mapping[str, Any]) -> str:
    """An accuracy and the longer arm of its 95% interval, in percent: for narrow columns.

    >>> format_margin({"accuracy": 0.942, "low": 0.918, "high": 0.9593, "total": 500})
    '94.2 ±2.4'
    """
    arm = max(cell["accuracy"] - cell["low"], cell["high"] - cell["accuracy"])
    return f"{percent(cell['accuracy'], cell['total'])} ±{math.ceil(1000 * arm - 1e-6) / 10:.1f}"


def format_eps(eps: float) -> str:
    """A bound or a step, as a fraction of 255 where that is shorter and exact.

    >>> format_eps(8 / 255), format_eps(0.2), format_eps(0.1234567)
    ('8/255', '0.2', '0.1235')
    """
    levels, decimal = round(255 * eps), f"{eps:.4g}"
    exact = abs(255 * eps - levels) < 1e-6
    return min(decimal, f"{levels}/255", key=len) if exact else decimal


def format_points(share: float) -> str:
    """A difference in percentage points with its sign, or 0.0 without one.

    >>> format_points(-0.004), format_points(0.17), format_points(-0.0001)
    ('-0.4', '+17.0', '0.0')
    """
    text = f"{100 * share:+.1f}"
    return "0.0" if float(text) == 0 else text


def format_change(change: IntervalEstimate) -> str:
    """A difference in percentage points with its 95% confidence interval.

    >>> format_change((0.134, 0.092, 0.175))
    '+13.4 points (95% CI +9.2 to +17.5)'
    """
    value, low, high = map(format_points, change)
    return f"{value} points (95% CI {low} to {high})"


def format_mean(estimate: IntervalEstimate) -> str:
    """A mean and the half-width of its symmetric 95% interval.

    >>> format_mean((0.5, 0.4, 0.6))
    '0.500 ± 0.100'
    """
    return f"{estimate[0]:.3f} ± {estimate[2] - estimate[0]:.3f}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as one short text.

    >>> format_settings({"lam": 0.5, "size": [0.75, 1.0]})
    'lam 0.5, size 0.75 to 1'
    """
    return ", ".join(f"{key} {_format_value(value)}" for key, value in settings.items())


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " to ".join(map(_format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
