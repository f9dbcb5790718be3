"""One tiny experiment, of which every test states only what it changes."""

from __future__ import annotations

import copy
import json
from typing import Any

PLAIN = {"title": "Mixup", "model": "mixup"}
DEFENDED = {"title": "Mixup + MI-OL", "model": "mixup", "defense": "mi-ol"}
TINY: dict[str, Any] = {
    "name": "tiny",
    "title": "A tiny experiment",
    "draws": 2,
    "data": {"name": "digits", "test": 20},
    "network": {"name": "small_cnn", "width": 4},
    "training": {"epochs": 1},
    "models": {"mixup": {"objective": "mixup"}},
    "attack": {"eps": 0.1, "step": 0.05, "steps": [2]},
    "rows": [PLAIN, DEFENDED],
}
#: Settings of training with which a few epochs, adversarial or not, are enough.
QUICK = {"lr": 0.1, "schedule": "one-cycle", "eps": 0.1, "step": 0.05, "steps": 2}


def tiny_spec(**changes: Any) -> dict[str, Any]:
    """The tiny experiment with some keys changed, as ``check_spec`` takes it.

    Tables are merged key by key, everything else is replaced; None takes a key out.

    >>> tiny_spec(data={"test": 5}, attack=None)["data"]
    {'name': 'digits', 'test': 5}
    """
    return merged(TINY, **changes)


def tiny_toml(**changes: Any) -> str:
    """The same as TOML."""
    return to_toml(tiny_spec(**changes))


def merged(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of a document with changes, as ``tiny_spec`` has them."""
    out = copy.deepcopy(document)
    for key, value in changes.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], **value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def to_toml(document: dict[str, Any], path: str = "") -> str:
    """A spec as TOML: tables as sections, but for those within a model or a row."""
    sections, lines = [], []
    for key, value in document.items():
        name = f"{path}{key}"
        if isinstance(value, dict) and path in ("", "models."):
            inner = to_toml(value, f"{name}.")
            sections.append(inner if name == "models" else f"[{name}]\n{inner}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            sections += [f"[[{name}]]\n{to_toml(entry, f'{name}.')}" for entry in value]
        else:
            lines.append(f"{key} = {_value(value)}\n")
    return "".join([*lines, *("\n" + section for section in sections)])


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)  # strings, numbers and booleans are written alike
