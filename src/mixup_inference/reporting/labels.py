"""What reports need to know of defences, objectives and threat models: titles and groups.

A name that is not known here, such as that of a plug-in that is not installed, is its own title.
"""

from __future__ import annotations

from typing import NamedTuple

from mixup_inference.defenses import DEFENSES


class _Objective(NamedTuple):
    title: str
    adversarial: bool
    uses_mixup: bool


_OBJECTIVES = {
    "erm": _Objective("ERM", adversarial=False, uses_mixup=False),
    "mixup": _Objective("mixup", adversarial=False, uses_mixup=True),
    "at": _Objective("AT", adversarial=True, uses_mixup=False),
    "iat": _Objective("interpolated AT", adversarial=True, uses_mixup=True),
}

_NEEDS_MIXUP = "The paper's and the published adaptive attacks apply to MI-OL and MI-PL only."
#: Threat models in the order of the table: the heading, and why a row may have no such attack.
_THREAT_MODELS = {
    "oblivious": ("Oblivious", ""),
    "transfer": ("Transfer", "Transfer attacks need other models in the run."),
    "paper": ("Paper's adaptive", _NEEDS_MIXUP),
    "official": ("Published adaptive", _NEEDS_MIXUP),
    "eot": ("Adaptive (EOT)", ""),
    "black-box": ("Black-box", ""),
    "peer": ("Other libraries", ""),
    "detector": ("Detector-aware", "Detector-aware attacks need a defence with a detector."),
    "frozen": ("Known seed", "A deterministic model has no seed to know."),
}


def defense_group(name: str) -> str:
    """One of "mixup", "baseline", "none" and "user"."""
    return DEFENSES[name].group if name in DEFENSES else "user"


def defense_title(name: str) -> str:
    """A defence's name in text and figures."""
    return DEFENSES[name].title if name in DEFENSES else name


def objective_title(name: str) -> str:
    """A training objective's name in text and figures."""
    return _OBJECTIVES[name].title if name in _OBJECTIVES else name


def uses_mixup(objective: str | None) -> bool:
    """Whether an objective trains on mixtures of images."""
    return objective in _OBJECTIVES and _OBJECTIVES[objective].uses_mixup


def without_mixup(objective: str) -> list[str]:
    """The objectives that differ from one with mixup in that they do not mix."""
    own = _OBJECTIVES[objective]
    return [
        name
        for name, entry in _OBJECTIVES.items()
        if not entry.uses_mixup and entry.adversarial == own.adversarial
    ]


def threat_model_rank(name: str) -> int:
    """The place of a threat model in the table; unknown ones come last."""
    return [*_THREAT_MODELS, name].index(name)


def threat_model_title(name: str) -> str:
    """A threat model's heading."""
    return _THREAT_MODELS[name][0] if name in _THREAT_MODELS else name


def why_missing(threat_model: str) -> str:
    """Why a row may have no attack of a threat model."""
    known = _THREAT_MODELS.get(threat_model, ("", ""))[1]
    return known or "Not every attack was run on every row."


def in_worst_case(threat_model: str) -> bool:
    """Whether attacks of a threat model count towards the worst case: not if they know the seed."""
    return threat_model != "frozen"
