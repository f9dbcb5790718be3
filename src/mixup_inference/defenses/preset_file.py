"""Presets of the user's own: small TOML files, as `mixup-inference tune` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixup_inference.errors import InputError
from mixup_inference.files import parse_toml, read_text, write_text

#: Bytes; no preset is larger.
LARGEST = 100_000


def write_preset(
    path: Path, defense: str, settings: Mapping[str, Any], *, comment: str = ""
) -> None:
    """Write a defence and its settings, below lines that say where they come from."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f'defense = "{defense}"']
    lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
    write_text(path, "\n".join(lines) + "\n")


def read_preset(path: Path) -> tuple[str, dict[str, Any]]:
    """The defence and its settings."""
    text = read_text(path, what="the preset", most=LARGEST)
    content = parse_toml(text, f"the preset {path}")
    defense = content.pop("defense", None)
    if not isinstance(defense, str):
        raise InputError(f'the preset {path} must say which defence it is for: defense = "mi-ol".')
    return defense, content


def _toml(value: Any) -> str:
    """A number, string, truth value, list or small table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
