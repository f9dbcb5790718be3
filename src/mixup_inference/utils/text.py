"""Escape untrusted text for a terminal, for Markdown and for spreadsheets."""

from __future__ import annotations

import re
from typing import Any

#: Control characters, which a terminal obeys; line separators; what turns the direction of text
#: around; halves of characters, which no file takes.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: What begins a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def is_plain(text: str) -> bool:
    """Whether a text is one line without control characters."""
    return _CONTROL.search(text) is None


def plain(text: str) -> str:
    r"""The text in one line, with control characters written out instead of obeyed.

    >>> print(plain("\x1b[2J red"))
    \x1b[2J red
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def plain_lines(text: str) -> str:
    """The same for a text that may have several lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def plain_values(value: Any) -> Any:
    """A JSON value in which every text and key is plain."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [plain_values(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain_values(item) for key, item in value.items()}
    return value


def markdown_words(text: str) -> str:
    r"""A text that Markdown shows as it is: no cell ends in it, no tag or link begins.

    >>> print(markdown_words("a|b <i> [x](y)"))
    a\|b &lt;i> \[x\](y)
    """
    marked = re.sub(r"[\\`*|\[\]]", lambda found: f"\\{found[0]}", plain(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;")


def spreadsheet_cell(value: Any) -> Any:
    """A value for a CSV file; a text that a spreadsheet would compute gets an apostrophe.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell("MI-OL"), spreadsheet_cell(-1)
    ("'=1+1", 'MI-OL', -1)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
