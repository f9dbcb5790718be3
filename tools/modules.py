"""Write the list of modules in docs/architecture.md from their docstrings: `make modules`."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mixup_inference"
PAGE = ROOT / "docs" / "architecture.md"
LIST = re.compile(r"(<!-- modules -->\n).*?(<!-- end of modules -->)", re.DOTALL)


def first_sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def module_list() -> str:
    """A table for each folder, with every module in it."""
    lines: list[str] = []
    folders = [PACKAGE, *sorted(p for p in PACKAGE.rglob("*") if (p / "__init__.py").is_file())]
    for folder in folders:
        name = folder.relative_to(PACKAGE.parent).as_posix()
        lines += ["", f"**`{name}/`**: {first_sentence(folder / '__init__.py')}", ""]
        modules = [p for p in sorted(folder.glob("*.py")) if not p.name.startswith("__")]
        if modules:
            lines += ["| module | what it holds |", "|---|---|"]
            lines += [f"| `{path.name}` | {first_sentence(path)} |" for path in modules]
    return "\n".join(lines).strip() + "\n"


def filled(page: str) -> str:
    """The page with the list as it should be."""
    return LIST.sub(lambda found: f"{found[1]}{module_list()}{found[2]}", page)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
