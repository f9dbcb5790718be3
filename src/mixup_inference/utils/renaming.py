"""The public names of a package, and old ones that keep working with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """The ``__all__`` of a package: all that it has imported, except modules."""
    public = {name for name in namespace if not name.startswith("_")}
    return sorted(name for name in public if not isinstance(namespace[name], ModuleType))


def renamed(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package in which names were renamed or moved.

    Args:
        package: its ``__name__``.
        names: for each old name, where the thing is now: "mixup_inference.defenses:Defense".
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, new = names[name].partition(":")
        message = f"{package}.{name} is now {module}.{new}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), new)

    return getattr_
