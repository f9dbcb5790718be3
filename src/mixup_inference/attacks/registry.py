"""ATTACKS: one entry for each attack, with all that the rest of the package knows of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from mixup_inference.attacks import external
from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.autoattack import RAND, autoattack_rand
from mixup_inference.attacks.base import AttackResult
from mixup_inference.attacks.carlini_wagner import carlini_wagner
from mixup_inference.attacks.custom import is_custom, run_custom
from mixup_inference.attacks.detector_aware import detector_aware
from mixup_inference.attacks.external import LIBRARIES, check_peer, is_library, peer_attack
from mixup_inference.attacks.gradient_sign import bim, fgsm, momentum, momentum_transfer
from mixup_inference.attacks.options import check_types, settings_of
from mixup_inference.attacks.paper import official_adaptive, paper_adaptive
from mixup_inference.attacks.pgd import eot_pgd, frozen
from mixup_inference.attacks.square import square_eot
from mixup_inference.attacks.threat_model import Norm
from mixup_inference.attacks.transfer import transfer
from mixup_inference.defenses import DEFENSES, CombinedInference, MixupInference
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.registry import Registry, is_code
from mixup_inference.validation import check_int

#: Kinds of defence that an attack may be made for.
Target = Literal["any", "random", "mixup", "detector"]

#: What the attacker knows: the "group" of results.json, and its heading, in the order of tables.
THREAT_MODELS = {
    "oblivious": "Oblivious",
    "transfer": "Transfer",
    "paper": "Paper's adaptive",
    "official": "Published adaptive",
    "eot": "Adaptive (EOT)",
    "black-box": "Black-box",
    "peer": "Other libraries",
    "custom": "Custom",
    "detector": "Detector-aware",
    "frozen": "Known seed",
}

#: Arguments that are objects, not settings of a spec.
_OBJECTS = ("surrogates", "start", "attack", "settings")


@dataclass(frozen=True)
class AttackEntry:
    """An attack: the function that runs it, its place in tables, and its requirements.

    name: in specs and on the command line.
    function: ``(defense, x, y, *, settings, **options) -> AttackResult``, or a user's own, see
        ``run_custom``.
    threat_model: what the attacker knows, a key of ``THREAT_MODELS``.
    title: in tables; may name settings, "EOT-PGD-{steps}".
    counts: the settings that are whole numbers of at least one.
    target: the kind of defence that it is made for.
    norms: in which it is defined.
    requires: what it needs in order to apply, in words: "needs a randomised defence".
    surrogates: it is crafted on other models.
    library: the attack of another library that it runs, ``library:Name``.
    worst_case: it counts for the worst case over all attacks.
    suite: the suite that it belongs to, if any.
    suite_settings: the settings that it has there, where they are not the defaults.
    """

    name: str
    function: Callable[..., Any]
    threat_model: str = "custom"
    title: str = ""
    counts: tuple[str, ...] = ()
    target: Target = "any"
    norms: tuple[Norm, ...] = ("linf", "l2")
    requires: str = ""
    surrogates: bool = False
    library: str = ""
    worst_case: bool = True
    suite: str = ""
    suite_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_external(self) -> bool:
        """Whether it is another library's, by its name there."""
        return is_library(self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings with their defaults."""
        objects = () if is_custom(self.function) else _OBJECTS
        settings = settings_of(self.function)
        return {name: value for name, value in settings.items() if name not in objects}

    def applies_to(self, defense: str) -> bool:
        """Whether it makes sense for a defence of this name."""
        entry = DEFENSES[defense]
        kinds = {"mixup": MixupInference, "detector": CombinedInference}
        if self.target in kinds:
            return entry.makes(kinds[self.target])
        return self.target == "any" or entry.random

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check names, types and counts of settings against the signature; nothing is run."""
        for key in settings.keys() & set(self.counts):
            check_int(settings[key], what=key, least=1)
        if self.is_external:
            check_peer(self.name, {key: settings[key] for key in settings if key != "draws"})
            return
        if self.library:
            check_peer(self.library)
        known = self.defaults
        parameters = inspect.signature(self.function).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for key in settings.keys() - known.keys():
                raise unknown_name(f"setting of the attack {self.name}:", key, known)
        for key, default in known.items():
            if default is inspect.Parameter.empty and key not in settings:
                raise InputError(f"the attack {self.name} needs the setting {key}.")
        check_types(self.function, settings)


ATTACKS: Registry[AttackEntry] = Registry("attack", AttackEntry)
_STEPS, _RESTARTS = ("steps", "draws"), ("steps", "draws", "restarts")
_MIXUP = "is made for the defences mi-ol and mi-pl"
_OTHERS = "needs other models to craft examples on"
# fmt: off
for _entry in (
    AttackEntry("oblivious", transfer, "oblivious", "oblivious PGD-{steps}", _STEPS),
    AttackEntry("transfer", transfer, "transfer", "transfer PGD-{steps}", _STEPS, surrogates=True,
                requires=_OTHERS),
    AttackEntry("official-adaptive", official_adaptive, "official",
                "published adaptive PGD-{steps}", ("steps", "samples"), target="mixup",
                norms=("linf",), requires=f"{_MIXUP} and the norm linf"),
    AttackEntry("paper-adaptive", paper_adaptive, "paper", "paper's adaptive PGD-{steps}",
                ("steps", "samples"), target="mixup", requires=_MIXUP),
    AttackEntry("eot-pgd", eot_pgd, "eot", "EOT-PGD-{steps}", _RESTARTS),
    AttackEntry("apgd", apgd_eot, "eot", "APGD-{loss}-{steps}", _RESTARTS,
                suite_settings={"loss": "dlr"}),
    AttackEntry("detector-aware", detector_aware, "detector", "detector-aware PGD-{steps}", _STEPS,
                target="detector", requires="is made for the defence mi-combined"),
    AttackEntry("square", square_eot, "black-box", "Square-{queries}", ("queries", "draws")),
    AttackEntry("frozen", frozen, "frozen", "frozen PGD-{steps}", _RESTARTS, target="random",
                worst_case=False, requires="needs a randomised defence"),
):
    ATTACKS.add(replace(_entry, suite="standard"))
for _entry in (
    AttackEntry("fgsm", fgsm, "eot", "FGSM", ("draws",)),
    AttackEntry("bim", bim, "eot", "BIM-{steps}", _STEPS),
    AttackEntry("momentum", momentum, "eot", "MI-FGSM-{steps}", _STEPS),
    AttackEntry("momentum-oblivious", momentum_transfer, "oblivious",
                "oblivious MI-FGSM-{steps}", _STEPS),
    AttackEntry("momentum-transfer", momentum_transfer, "transfer", "transfer MI-FGSM-{steps}",
                _STEPS, surrogates=True, requires=_OTHERS),
    AttackEntry("carlini-wagner", carlini_wagner, "eot", "C&W-{steps}",
                ("steps", "searches", "draws"), norms=("l2",), requires="needs the norm l2"),
    AttackEntry("autoattack-rand", autoattack_rand, "peer", "AutoAttack rand",
                ("n_iter", "eot_iter"), library=RAND),
):
    ATTACKS.add(_entry)
# fmt: on


def get_attack(name: str, *, others: Iterable[str] = ()) -> AttackEntry:
    """Return an attack by its name, or by ``library:Name`` of another library's.

    ``others`` are further names to list if it is unknown.
    """
    if is_library(name):
        check_peer(name)
        title = name.replace(":", " ")
        return AttackEntry(name, peer_attack, "peer", title, ("draws",), library=name)
    if name not in ATTACKS and not is_code(name):
        known = [*others, *ATTACKS, *(f"{library}:NAME" for library in LIBRARIES)]
        raise unknown_name("attack", name, known)
    return ATTACKS[name]


def library_version(name: str) -> str | None:
    """Return the version of the library that an attack comes from; None if it is none."""
    library = get_attack(name).library
    return external.installed_version(library) if library else None


def suite(name: str = "standard") -> list[AttackEntry]:
    """Return the attacks of a suite, in their order."""
    return [entry for entry in ATTACKS.values() if entry.suite == name]


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that an attack does not have, or of the wrong type; nothing is run."""
    get_attack(name).check(settings)


def attack_title(name: str, settings: Mapping[str, Any]) -> str:
    """Return the title of an attack in tables.

    >>> attack_title("apgd", {"loss": "dlr", "steps": 100})
    'APGD-DLR-100'
    """
    entry = get_attack(name)
    values = entry.defaults | dict(settings)
    if "loss" in values:
        values["loss"] = str(values["loss"]).upper()
    title = (entry.title or name).format(**values)
    return f"{title} (T)" if settings.get("target_classes") else title


def run_attack(
    name: str,
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    settings: Mapping[str, Any],
    **options: Any,
) -> AttackResult:
    """Run an attack by its name; unknown settings are refused with the nearest known name."""
    entry = get_attack(name)
    entry.check(settings)
    if is_custom(entry.function):
        return run_custom(name, entry.function, defense, x, y, settings, **options)
    if entry.is_external:
        theirs = dict(settings)
        draws = {"draws": theirs.pop("draws")} if "draws" in theirs else {}
        settings = {"attack": name, "settings": theirs, **draws}
    result: AttackResult = entry.function(defense, x, y, **settings, **options)
    return result
