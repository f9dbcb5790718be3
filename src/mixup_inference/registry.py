"""Registries: one record for each defence, attack, objective, network, data set and score.

All that the rest of the package knows of a thing stands in its entry. A thing of a user's own is
an entry too, and there are three ways to bring it, which all end in ``Registry.add``:

- in Python, the decorator ``@REGISTRY.register("name", ...)``;
- by its place, ``package.module:attribute``, on the command line or in a spec (``Registry.load``);
- as an installed package with an entry point in the group ``mixup_inference.plugins``, which is
  loaded when a name is not known otherwise or when all names are listed.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mixup_inference.errors import InputError, MixupInferenceWarning, unknown_name

PLUGINS = "mixup_inference.plugins"


class Entry(Protocol):
    """What every record has."""

    @property
    def name(self) -> str:
        """What it is called in specs and on the command line."""


E = TypeVar("E", bound=Entry)
T = TypeVar("T")


class Registry(Mapping[str, E], Generic[E]):
    """Entries by name, in the order in which they were added.

    Args:
        kind: what the entries are, for messages: "defence".
        entry: their class, which is called with a name, a class or function, and further fields
            by keyword.
    """

    def __init__(self, kind: str, entry: type[E]) -> None:
        self.kind = kind
        self._entry = entry
        self._entries: dict[str, E] = {}

    def add(self, entry: E) -> E:
        """Add an entry; a name that is taken is refused."""
        if entry.name in self._entries:
            raise InputError(f"there is already a {self.kind} called {entry.name!r}.")
        self._entries[entry.name] = entry
        return entry

    def register(self, name: str, **fields: Any) -> Callable[[T], T]:
        """Decorate a class or function to add it under this name.

        >>> REGISTRY.register("mine")(thing)  # doctest: +SKIP
        """

        def decorate(thing: T) -> T:
            self.add(self._entry(name, thing, **fields))  # type: ignore[call-arg]
            return thing

        return decorate

    def load(self, name: str) -> E:
        """The entry of a known name, or of ``package.module:attribute``, whose code this runs.

        The attribute is an entry, or a thing that one is made of. Whoever passes on a name from a
        file asks the user first.
        """
        if name not in self and is_code(name):
            thing = import_attribute(name, self.kind)
            if not isinstance(thing, self._entry):
                thing = self._entry(name, thing)  # type: ignore[call-arg]
            self._entries[name] = thing
        return self[name]

    def remove(self, name: str) -> None:
        """Forget an entry, such as one that was registered for a test."""
        self._entries.pop(name, None)

    def __getitem__(self, name: str) -> E:
        if name not in self:
            if is_code(name):
                raise InputError(
                    f"{name!r} is code of your own, which runs only if you allow it: use "
                    "--allow-code, or load() of the registry in Python."
                )
            raise unknown_name(self.kind, name, self)
        return self._entries[name]

    def get(self, name: object, default: Any = None) -> Any:
        """The entry of a name, or the default; runs no code of a user's."""
        return self._entries[str(name)] if name in self else default

    def __contains__(self, name: object) -> bool:
        if name not in self._entries and isinstance(name, str) and not is_code(name):
            load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)


def is_code(name: str) -> bool:
    """Whether a name is of the form ``package.module:attribute``.

    >>> is_code("my_package.defences:Blur"), is_code("mi-ol"), is_code("folder:/images")
    (True, False, False)
    """
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), attribute])


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Also look for modules in the working folder, after the installed ones.

    A folder that came from elsewhere cannot take their place.
    """
    path_before = sys.path.copy()
    sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = path_before


def import_attribute(name: str, kind: str) -> Any:
    """The object at ``package.module:attribute``, which may lie in the working folder."""
    module, _, attribute = name.partition(":")
    try:
        if not is_code(name):
            raise ValueError("no such place")
        with importing_from_here():
            return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise InputError(
            f"cannot import the {kind} {name!r}: {type(error).__name__}: {error}. It must be "
            "package.module:attribute, importable from here."
        ) from error


@cache
def load_plugins() -> None:
    """Load every installed entry point of the group, once; a broken one is a warning."""
    for point in metadata.entry_points(group=PLUGINS):
        try:
            plugin = point.load()
            if callable(plugin):
                plugin()
        except Exception as error:
            warnings.warn(
                f"the plug-in {point.name} ({point.value}) could not be loaded: "
                f"{type(error).__name__}: {error}",
                MixupInferenceWarning,
                stacklevel=2,
            )
