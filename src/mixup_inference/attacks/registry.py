"""Attacks by name, for specs and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.base import Attacked
from mixup_inference.attacks.detector_aware import detector_aware
from mixup_inference.attacks.eot import eot_pgd, frozen
from mixup_inference.attacks.external import LIBRARIES, check_peer, peer_attack
from mixup_inference.attacks.paper import official_adaptive, paper_adaptive
from mixup_inference.attacks.square import square_eot
from mixup_inference.attacks.transfer import transfer
from mixup_inference.defenses import (
    DEFENSES,
    CombinedInference,
    DefenseEntry,
    MixupInference,
)
from mixup_inference.errors import unknown_name
from mixup_inference.pool import Pool
from mixup_inference.validation import check_int

#: Settings that count something.
_COUNTS = {"steps", "draws", "samples", "queries", "restarts"}
#: What a caller brings along, not a setting.
_BROUGHT = {"surrogates", "start", "settings", "attack"}


class Sketch(nn.Module):
    """A classifier of one line whose answers depend on the image: to try attacks out on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        """Logits that rise with the mean pixel, each class at its own rate."""
        return x.flatten(1).mean(1, keepdim=True) * torch.arange(self.classes, device=x.device)


@dataclass(frozen=True)
class Attack:
    """A kind of attack: what runs it, how it is called in tables, what it applies to.

    ``defenses`` says which defences it makes sense for; all, if None. ``group`` puts
    attacks of one threat model together.
    """

    run: Callable[..., Attacked]
    label: str
    group: str
    defenses: Callable[[DefenseEntry], bool] | None = None
    signature: Callable[..., Attacked] | None = None

    def applies_to(self, defense: str) -> bool:
        """Whether it makes sense for a kind of defence."""
        return self.defenses is None or self.defenses(DEFENSES[defense])

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings with their defaults."""
        parameters = inspect.signature(self.signature or self.run).parameters
        return {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in _BROUGHT
        }


def _mixup(defense: DefenseEntry) -> bool:
    return defense.makes(MixupInference)


def _combined(defense: DefenseEntry) -> bool:
    return defense.makes(CombinedInference)


def _random(defense: DefenseEntry) -> bool:
    return defense.random


ATTACKS: Mapping[str, Attack] = {
    "oblivious": Attack(transfer, "oblivious PGD-{steps}", "oblivious"),
    "transfer": Attack(transfer, "transfer PGD-{steps}", "transfer"),
    "official-adaptive": Attack(
        official_adaptive, "published adaptive PGD-{steps}", "official", _mixup
    ),
    "paper-adaptive": Attack(paper_adaptive, "paper's adaptive PGD-{steps}", "paper", _mixup),
    "eot-pgd": Attack(eot_pgd, "EOT-PGD-{steps}", "eot"),
    "apgd": Attack(apgd_eot, "APGD-{loss}-{steps}", "eot"),
    "detector-aware": Attack(detector_aware, "detector-aware PGD-{steps}", "detector", _combined),
    "square": Attack(square_eot, "Square-{queries}", "black-box"),
    "frozen": Attack(frozen, "frozen PGD-{steps}", "frozen", _random, eot_pgd),
}
_PEER = Attack(peer_attack, "{attack}", "peer")


def get_attack(name: str) -> Attack:
    """A kind of attack by its name, or ``library:Name`` of another library's."""
    if name in ATTACKS:
        return ATTACKS[name]
    if ":" in name:
        check_peer(name)
        return _PEER
    raise unknown_name("attack", name, [*ATTACKS, *(f"{library}:NAME" for library in LIBRARIES)])


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that an attack does not know or cannot use.

    Numbers of steps, draws and the like must be whole and positive; all others are tried out on
    one small image.
    """
    kind = get_attack(name)
    if kind is _PEER:
        check_int(settings.get("draws", 1), what="draws", least=1)
        check_peer(name, {key: value for key, value in settings.items() if key != "draws"})
        return
    _refuse_unknown(name, kind, settings)
    small = dict(settings)
    for key in _COUNTS & settings.keys():
        check_int(settings[key], what=key, least=1)
        small[key] = 1
    image = torch.full((1, 1, 8, 8), 0.5)
    pool = Pool(image.expand(3, -1, -1, -1), torch.arange(3))
    model = Sketch(3)
    kinds: dict[bool, Callable[..., nn.Module]] = {True: CombinedInference, False: MixupInference}
    defense = kinds[name == "detector-aware"](model, pool, draws=2)
    kind.run(defense, image, torch.zeros(1, dtype=torch.int64), repeats=1, **small)


def attack_title(name: str, settings: Mapping[str, Any]) -> str:
    """What an attack is called in a table.

    >>> attack_title("apgd", {"loss": "dlr", "steps": 100})
    'APGD-DLR-100'
    """
    kind = get_attack(name)
    values = kind.defaults | {"attack": name.replace(":", " ")} | dict(settings)
    if "loss" in values:
        values["loss"] = str(values["loss"]).upper()
    title = kind.label.format(**values)
    return f"{title} (T)" if settings.get("target_classes") else title


def run_attack(
    name: str, defense: Any, x: Any, y: Any, *, settings: Mapping[str, Any], **options: Any
) -> Attacked:
    """Run an attack by its name; unknown settings are refused with the nearest known name."""
    kind = get_attack(name)
    if kind is _PEER:
        known = {"draws"}
        ours = {key: value for key, value in settings.items() if key in known}
        theirs = {key: value for key, value in settings.items() if key not in known}
        return peer_attack(defense, x, y, attack=name, settings=theirs, **ours, **options)
    _refuse_unknown(name, kind, settings)
    return kind.run(defense, x, y, **settings, **options)


def _refuse_unknown(name: str, kind: Attack, settings: Mapping[str, Any]) -> None:
    for key in settings.keys() - kind.defaults.keys():
        raise unknown_name(f"setting of the attack {name}:", key, kind.defaults)
