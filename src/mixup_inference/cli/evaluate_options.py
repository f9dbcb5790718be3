"""The options of `evaluate`, `analyze` and `tune` that describe one model, made into a spec."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mixup_inference.attacks import ATTACKS, get_attack, is_library
from mixup_inference.cli.options import POINTS, Common, OneModel
from mixup_inference.defenses import DEFENSES, settings_of
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.evaluation.grid_search import in_words
from mixup_inference.experiments import Spec, check_spec, load_spec
from mixup_inference.experiments.spec import AdaptiveAttackSpec, standard_attacks
from mixup_inference.experiments.spec.fields import check_known
from mixup_inference.models import from_pretrained
from mixup_inference.registry import is_code
from mixup_inference.utils.io import expanded
from mixup_inference.utils.text import plain
from mixup_inference.validation import check_int, check_number


def adaptive_section(one: OneModel) -> dict[str, Any] | None:
    """The section of adaptive attacks, if any is asked for."""
    if "none" in one.attack and len(one.attack) > 1:
        raise InputError("--attack none excludes other attacks.")
    if not _names(one):
        if one.attack_setting or one.surrogate or one.checks is not None:
            raise InputError(
                "--attack-setting, --surrogate and --checks are for adaptive attacks; "
                "add --attack adaptive."
            )
        return None
    section = {"attacks": _attacks(one), "points": one.points, "checks": one.checks}
    return {key: value for key, value in section.items() if value is not None}


def spec_and_model(
    name: str | None,
    one: OneModel,
    common: Common,
    *,
    allowed: set[str],
    never: Collection[str] = (),
    tuning: int = 0,
) -> tuple[Spec, str | None]:
    """What `analyze` and `tune` are about: models of an experiment, or one of the user's own.

    Options that would be ignored are refused: all but the ``allowed`` ones for an experiment, those
    in ``never`` for a model of the user's own.
    """
    ours = one.data is None
    given = [f.name for f in fields(one) if getattr(one, f.name) != f.default]
    if wrong := [n for n in given if (n not in allowed if ours else n in never)]:
        names = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise InputError(f"{names} would be ignored here; leave it out.")
    if ours:
        return load_spec(name or "digits", allow_code=common.allow_code), one.model
    if adaptive_section(one) is not None:
        raise InputError("adaptive attacks are for `evaluate`; leave out --attack.")
    return make_spec(one, name, tuning=tuning), "model"


def _names(one: OneModel) -> list[str]:
    return [name for name in one.attack if name not in ("pgd", "none")]


def _attacks(one: OneModel) -> list[dict[str, Any]]:
    """The attacks that are asked for, and EOT-PGD, each with the settings that it knows.

    What --attack-setting says comes before --steps and --step, which are pgd's too.
    """
    standard = [spec.model_dump(exclude_defaults=True) for spec in standard_attacks()]
    asked: list[dict[str, Any]] = []
    for name in _names(one):
        asked += standard if name == "adaptive" else [{"attack": _checked(name)}]
    settings = named_settings(one.attack_setting, "--attack-setting")
    known = {key for document in asked for key in _known(document, settings)}
    for key in sorted(set(settings) - known):
        have = {name for document in asked for name in get_attack(document["attack"]).defaults}
        names = ", ".join(dict.fromkeys(document["attack"] for document in asked))
        raise unknown_name(f"setting of {names}:", key, have)
    if one.surrogate and not any(get_attack(document["attack"]).surrogates for document in asked):
        raise InputError("--surrogate is for transfer attacks; add --attack transfer.")
    steps = {"steps": one.steps, "step": None if one.step is None else number(one.step, "--step")}
    steps = {key: value for key, value in steps.items() if value is not None}
    if not any(document["attack"] == "eot-pgd" for document in asked):
        asked.append({"attack": "eot-pgd"})
    out: list[dict[str, Any]] = []
    for document in asked:
        ours = not get_attack(document["attack"]).is_external
        full = document | (_known(document, steps) if ours else {}) | _known(document, settings)
        if get_attack(document["attack"]).surrogates:
            full["surrogates"] = [f"surrogate-{i + 1}" for i in range(len(one.surrogate))]
        if full not in out:
            out.append(full)
    return out


def _checked(name: str) -> str:
    """The name of an attack; an unknown one is refused with all that --attack takes."""
    return get_attack(name, others=("pgd", "none", "adaptive")).name


def _known(document: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that an attack has; another library's is handed all of them."""
    kind = get_attack(document["attack"])
    if kind.is_external:
        return settings
    return {key: value for key, value in settings.items() if key in kind.defaults}


def load_code(one: OneModel) -> None:
    """Load the defence and the attacks that are given as ``package.module:attribute``.

    To type such a name is to allow its code, so no --allow-code is needed.
    """
    if is_code(one.defense):
        DEFENSES.load(one.defense)
    for name in one.attack:
        if is_code(name) and not is_library(name):
            ATTACKS.load(name)


def make_spec(one: OneModel, spec: str | None, *, tuning: int = 0) -> Spec:
    """The experiment that the options describe, with so many points to tune on."""
    load_code(one)
    if spec is not None:
        raise InputError(f"give either an experiment ({spec}) or --data and a model, not both.")
    if one.data is None:
        raise InputError("--data is needed: a name of `mixup-inference data list`, or folder:PATH.")
    if one.model is None and one.weights is None:
        raise InputError(
            "--model or --weights is needed; weights that this package saved name their network."
        )
    if one.model is not None and ":" not in one.model and one.weights is None:
        raise InputError(f"--weights is needed: without them, {one.model} is untrained.")
    if one.defense == "none" and (one.lam is not None or one.setting):
        raise InputError("--lam and --setting are settings of a defence, but --defense is none.")
    network = _network(one)
    size = one.size
    if size is None and network is None and one.data.startswith("folder:"):
        size = getattr(from_pretrained(str(one.weights)), "config", {}).get("size")
    name = one.model or _name_of(one.weights)
    lam = () if one.lam is None else (f"lam={one.lam}",)
    settings = named_settings((*lam, *one.setting), "--setting")
    rows: list[dict[str, Any]] = [{"title": name, "model": "model"}]
    if one.preset is not None:
        if settings:
            raise InputError("--preset brings its own settings; leave out --lam and --setting.")
        title = f"{name} + {plain(Path(one.preset).stem)}"
        rows.append({"title": title, "model": "model", "preset": one.preset})
    elif one.defense != "none":
        check_known(f"setting of {one.defense}:", settings, settings_of(one.defense))
        title = f"{name} + {one.defense}" + (f" ({in_words(settings)})" if settings else "")
        rows.append({"title": title, "model": "model", "defense": one.defense, **settings})
    eps = number(one.eps, "--eps")
    if one.norm == "linf" and eps > 1:
        raise InputError(f"--eps {one.eps} is more than all of [0, 1]; is it {one.eps}/255?")
    attack = {
        "norm": one.norm,
        "eps": eps,
        "step": eps / 4 if one.step is None else number(one.step, "--step"),
        "steps": [10 if one.steps is None else one.steps],
    }
    points = POINTS if one.points is None else check_int(one.points, what="--points", least=1)
    document = {
        "name": "evaluate-" + re.sub(r"[^A-Za-z0-9._-]+", "-", name),
        "title": f"{name} on {one.data}",
        "seed": one.seed,
        "draws": one.draws,
        "batch_size": one.batch_size,
        "data": {
            "name": one.data,
            "test": points,
            "tuning": tuning,
            "size": size,
            "channels": one.channels,
        },
        "models": {"model": {"weights": one.weights, "network": network}}
        | {f"surrogate-{i + 1}": {"weights": path} for i, path in enumerate(one.surrogate)},
        "attack": None if "none" in one.attack else attack,
        "adaptive": adaptive_section(one),
        "rows": rows,
    }
    made = check_spec(document, source="", allow_code=True)
    for asked in _names(one):
        _refuse_useless(asked, made)
    return made


def _refuse_useless(name: str, spec: Spec) -> None:
    """Refuse an attack that was asked for by name and makes no sense for any row."""
    attack = AdaptiveAttackSpec(attack="eot-pgd" if name == "adaptive" else name)
    if not any(spec.attack_applies(attack, row) for row in spec.rows):
        entry = get_attack(attack.attack)
        needs = entry.requires or "does not apply to this defence"
        hint = "; give their weights with --surrogate" if entry.surrogates else ""
        raise InputError(f"--attack {name} would do nothing: it {needs}{hint}.")


def _name_of(weights: str | None) -> str:
    """What to call a model of which there is only a file or a folder."""
    path = expanded(str(weights)).resolve()
    return plain(path.parent.name if path.name == "model.safetensors" else path.stem)


def _network(one: OneModel) -> dict[str, Any] | None:
    scale = {
        key: [number(part.strip(), f"--{key}") for part in value.split(",")]
        for key, value in (("mean", one.mean), ("std", one.std))
        if value is not None
    }
    if one.model is not None:
        return {"name": one.model, "classes": one.classes, **scale}
    if scale or one.classes is not None:
        raise InputError(
            "--mean, --std and --classes need --model; weights of this package contain them."
        )
    return None


def number(text: str, what: str) -> float:
    """A number, or a fraction such as 8/255 or 125.3/255."""
    above, _, below = text.partition("/")
    try:
        return check_number(float(above) / float(below or 1), what=what)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{what} must be a number or a fraction like 8/255; saw {text}.") from None


def named_settings(texts: Sequence[str], option: str) -> dict[str, Any]:
    """All of name=value, with the values as in TOML; what is not TOML is a string."""
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise InputError(f"{option} must be name=value; saw {text}.")
        if name in out:
            raise InputError(f"{name} is given twice.")
        try:
            out[name] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            out[name] = value
    return out
