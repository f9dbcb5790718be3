"""Hash the code behind a result, so that a change of code makes exactly its results stale.

The code behind a function is the module that it is in and all modules of this package that this
one imports names from, and so on. Docstrings, comments and formatting do not count: what is hashed
is the syntax tree without them. Helpers that cannot change a number (checks, messages, files,
progress bars) do not count either.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

NAME = __name__.partition(".")[0]
PACKAGE = Path(__file__).parent.parent
#: Modules and packages in which nothing is computed, registries in any package among them: who
#: takes a thing from one names that thing too.
NOT_HASHED = ("errors", "registry", "reporting", "utils", "validation")


def code_hash(*things: Any, without: Iterable[str] = (), root: Path = PACKAGE) -> str:
    """A hash of the code behind classes, functions or modules ("theory.measure").

    A name that ends in .py ("experiments/analysis.py") stands for that file alone, and so does a
    thing of a user's own. ``without`` names packages that are imported and not needed here. What
    ``functools.partial`` has bound to a function counts too.
    """
    skipped = frozenset({*NOT_HASHED, *without})
    digest = hashlib.blake2b(digest_size=8)
    files: set[Path] = set()
    for given in things:
        thing = given
        while isinstance(thing, partial):
            digest.update(f"{thing.args} {thing.keywords}\n".encode())
            thing = thing.func
        if isinstance(thing, str) and thing.endswith(".py"):
            files.add(root / thing)
            continue
        module = thing if isinstance(thing, str) else _module_of(thing)
        ours = module.removeprefix(f"{NAME}.")
        if isinstance(thing, str) or ours != module:
            files |= _behind(ours, skipped, root)
        elif (path := getattr(sys.modules.get(module), "__file__", None)) is not None:
            files.add(Path(path))
    for path in sorted(files):
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name} {_hash_of(path)}\n".encode())
    return digest.hexdigest()


def _module_of(thing: Any) -> str:
    found = inspect.getmodule(inspect.unwrap(thing) if callable(thing) else type(thing))
    return found.__name__ if found is not None else type(thing).__module__


@cache
def _behind(module: str, skipped: frozenset[str], root: Path) -> frozenset[Path]:
    """The files of a module of ours and of all that it imports names from."""
    waiting, found = [_file(root, module)], set()
    while waiting:
        path = waiting.pop()
        if path is None or path in found or skipped & {*path.relative_to(root).parts, path.stem}:
            continue
        found.add(path)
        waiting += [_defined_in(root, origin, name) for origin, name in _imports(_parsed(path))]
    return frozenset(found)


def _defined_in(root: Path, module: str, name: str) -> Path | None:
    """The file that a name comes from: a package's ``__init__`` hands on what others define."""
    path = _file(root, f"{module}.{name}") or _file(root, module)
    if path is not None and path.name == "__init__.py":
        for origin, exported in _imports(_parsed(path)):
            if exported == name:
                return _defined_in(root, origin, name)
    return path


def _file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The modules of this package and the names that a module imports from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{NAME}."):
            module = str(node.module).removeprefix(f"{NAME}.")
            yield from ((module, alias.name) for alias in node.names)


@cache
def _hash_of(path: Path) -> str:
    return hashlib.blake2b(ast.dump(_parsed(path)).encode(), digest_size=8).hexdigest()


@cache
def _parsed(path: Path) -> ast.Module:
    """The syntax tree without docstrings and without imports for type checkers."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _says_nothing(part)]
    return tree


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
