"""The options of `evaluate` about attacks that know the defence, made into a section of a spec."""

from __future__ import annotations

from typing import Any

from mixup_inference.attacks import get_attack
from mixup_inference.cli.one_model import OneModel, named_settings, number
from mixup_inference.errors import InputError
from mixup_inference.evaluation import Spec
from mixup_inference.evaluation.spec import KnowingSpec, standard_attacks

#: What an attack needs in order to make sense.
_NEEDS = {
    "transfer": "it needs --surrogate, weights of another model",
    "official-adaptive": "it is for --defense mi-ol or mi-pl and --norm linf",
    "paper-adaptive": "it is for --defense mi-ol or mi-pl",
    "detector-aware": "it is for --defense mi-combined",
    "frozen": "it needs a defence",
}


def knowing_section(one: OneModel) -> dict[str, Any] | None:
    """The section of attacks that know the defence, if any is asked for."""
    if "none" in one.attack and len(one.attack) > 1:
        raise InputError("--attack none excludes other attacks.")
    if not _names(one):
        if one.attack_setting or one.surrogate or one.checks is not None:
            raise InputError(
                "--attack-setting, --surrogate and --checks are for attacks that know the "
                "defence; add --attack adaptive."
            )
        return None
    section: dict[str, Any] = {"attacks": _attacks(one)}
    if one.points is not None:
        section["points"] = one.points
    if one.checks is not None:
        section["checks"] = one.checks
    return section


def refuse_knowing(one: OneModel) -> None:
    """Refuse attacks that know the defence, where they would be ignored."""
    if knowing_section(one) is not None:
        raise InputError("attacks that know the defence are for `evaluate`; leave out --attack.")


def refuse_useless(one: OneModel, spec: Spec) -> None:
    """Refuse an attack that was asked for by name and makes no sense for any row."""
    for name in _names(one):
        attack = KnowingSpec(attack="eot-pgd" if name == "adaptive" else name)
        if not any(spec.attack_applies(attack, row) for row in spec.rows):
            raise InputError(f"--attack {name} would do nothing: {_NEEDS[name]}.")


def _names(one: OneModel) -> list[str]:
    return [name for name in one.attack if name not in ("pgd", "none")]


def _attacks(one: OneModel) -> list[dict[str, Any]]:
    """The attacks that are asked for, and EOT-PGD, each with the settings that it knows.

    What --attack-setting says comes before --steps and --step, which are pgd's too.
    """
    standard = [spec.model_dump(exclude_defaults=True) for spec in standard_attacks()]
    asked: list[dict[str, Any]] = []
    for name in _names(one):
        asked += standard if name == "adaptive" else [{"attack": name}]
    settings = named_settings(one.attack_setting, "--attack-setting")
    known = {key for document in asked for key in _known(document, settings)}
    if set(settings) - known:
        raise InputError(f"no attack has the setting {', '.join(sorted(set(settings) - known))}.")
    if one.surrogate and not any(document["attack"] == "transfer" for document in asked):
        raise InputError("--surrogate is for transfer attacks; add --attack transfer.")
    steps = {
        "steps": one.steps,
        "step": None if one.step is None else number(one.step, "--step"),
    }
    steps = {key: value for key, value in steps.items() if value is not None}
    if not any(document["attack"] == "eot-pgd" for document in asked):
        asked.append({"attack": "eot-pgd"})
    out: list[dict[str, Any]] = []
    for document in asked:
        ours = get_attack(document["attack"]).group != "peer"
        full = document | (_known(document, steps) if ours else {}) | _known(document, settings)
        if document["attack"] == "transfer":
            full["surrogates"] = [f"surrogate-{i + 1}" for i in range(len(one.surrogate))]
        if full not in out:
            out.append(full)
    return out


def _known(document: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that an attack has; another library's is handed all of them."""
    kind = get_attack(document["attack"])
    if kind.group == "peer":
        return settings
    return {key: value for key, value in settings.items() if key in kind.defaults}
