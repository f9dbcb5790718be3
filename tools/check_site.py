"""Fail if a page of the built site loads fonts, scripts, styles or images from elsewhere."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

LOADS = re.compile(
    r"<(?:link|script|img|iframe|source|video|audio|object|embed)\b[^>]*?"
    r"\b(?:src|srcset|href|data)=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)"
)
#: Links in the head that name a page and load nothing.
NAMES = re.compile(r"<link\b[^>]*\brel=[\"']?(?:canonical|prev|next|alternate)\b[^>]*>")


def outside(site: Path) -> list[str]:
    """Every address of another host that a page or style sheet would load."""
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = NAMES.sub("", path.read_text(encoding="utf-8"))
        found += [f"{path}: {one or other}" for one, other in LOADS.findall(text)]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="the folder that mkdocs wrote")
    loads = outside(parser.parse_args().site)
    print(*loads, sep="\n", end="\n" if loads else "")
    sys.exit(bool(loads))
