"""The paper's parameter tables as presets, and presets in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from mixup_inference.defenses.base import Options
from mixup_inference.defenses.registry import make_defense, settings_of
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.pool import Pool
from mixup_inference.utils.io import parse_toml, read_text, toml_value, write_text


@dataclass(frozen=True)
class Preset:
    """One row of the paper's Table 4 (CIFAR-10) or Table 5 (CIFAR-100), or one of ours."""

    objective: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(
        self, model: nn.Module, pool: Pool | None = None, **options: Unpack[Options]
    ) -> nn.Module:
        """Wrap a model in this row's defence."""
        return make_defense(self.kind, model, pool, **self.settings, **options)


# MI-Combined's two ratios are printed with one name; the first is that of MI-PL.
_COMBINED = {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": 0.2}

#: Objective, defence, and its settings in Table 4 (CIFAR-10) and Table 5 (CIFAR-100). The baselines
#: are those of the published code, to which these settings belong.
_TABLES: tuple[tuple[str, str, Any, Any], ...] = (
    ("mixup", "none", {}, {}),
    ("mixup", "gaussian-published", {"sigma": 0.04}, {"sigma": 0.025}),
    ("mixup", "rotation-published", {"degrees": 40.0}, {"degrees": 20.0}),
    ("mixup", "resize-pad-published", {"size": (16, 24)}, {"size": (18, 26)}),
    ("mixup", "crop-resize-published", {"size": (22, 30)}, {"size": (24, 32)}),
    ("erm", "mi-ol", {"lam": 0.6}, None),
    ("mixup", "mi-ol", {"lam": 0.5}, {"lam": 0.5}),
    ("mixup", "mi-combined", _COMBINED, _COMBINED),
    ("iat", "none", {}, {}),
    ("iat", "gaussian-published", {"sigma": 0.075}, {"sigma": 0.06}),
    ("iat", "rotation-published", {"degrees": 30.0}, {"degrees": 20.0}),
    ("iat", "resize-pad-published", {"size": (20, 28)}, {"size": (22, 30)}),
    ("iat", "crop-resize-published", {"size": (20, 28)}, {"size": (24, 32)}),
    ("at", "mi-ol", {"lam": 0.8}, None),
    ("iat", "mi-ol", {"lam": 0.6}, {"lam": 0.6}),
)

#: By data set, objective and defence: "cifar10/mixup", "cifar10/mixup+mi-ol".
PRESETS: Mapping[str, Preset] = {
    f"{data}/{objective}+{kind.removesuffix('-published')}".removesuffix("+none"): Preset(
        objective, kind, settings[table]
    )
    for table, data in enumerate(("cifar10", "cifar100"))
    for objective, kind, *settings in _TABLES
    if settings[table] is not None
} | {
    # Ours: a random ratio around that of Table 4, which Section 3.1 and Appendix B.1 suggest.
    "ours/mixup+mi-ol-uniform": Preset("mixup", "mi-ol", {"lam": {"uniform": [0.4, 0.6]}}),
    "ours/mixup+mi-ol-beta": Preset("mixup", "mi-ol", {"lam": {"beta": [2, 2]}}),
    "ours/mixup+mi-pl-uniform": Preset("mixup", "mi-pl", {"lam": {"uniform": [0.4, 0.6]}}),
    "ours/mixup+mi-pl-beta": Preset("mixup", "mi-pl", {"lam": {"beta": [2, 2]}}),
}


def get_preset(name: str) -> Preset:
    """A row of the paper's parameter tables or ours by name, or a preset file by its path (.toml).

    >>> get_preset("cifar10/mixup+gaussian").settings
    {'sigma': 0.04}
    """
    if name.endswith(".toml"):
        kind, settings = read_preset(Path(name))
        for key in settings.keys() - settings_of(kind):
            raise unknown_name(f"setting of {kind}", key, settings_of(kind))
        return Preset("", kind, settings)
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


#: Bytes; no preset is larger.
LARGEST = 100_000


def write_preset(
    path: Path, defense: str, settings: Mapping[str, Any], *, comment: str = ""
) -> None:
    """Write a defence and its settings, below a comment."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    pairs = {"defense": defense, **settings}
    lines += [f"{name} = {toml_value(value)}" for name, value in pairs.items()]
    write_text(path, "\n".join(lines) + "\n")


def read_preset(path: Path) -> tuple[str, dict[str, Any]]:
    """The defence and its settings."""
    text = read_text(path, what="the preset", most=LARGEST)
    content = parse_toml(text, f"the preset {path}")
    defense = content.pop("defense", None)
    if not isinstance(defense, str):
        raise InputError(f'the preset {path} must say which defence it is for: defense = "mi-ol".')
    return defense, content
