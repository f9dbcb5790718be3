"""Titles of defences, objectives and threat models, from the registries.

A name that no registry knows, such as that of a plug-in that is not installed, is its own title.
"""

from __future__ import annotations

from mixup_inference.attacks import ATTACKS, THREAT_MODELS
from mixup_inference.defenses import DEFENSES
from mixup_inference.training import OBJECTIVES


def defense_title(name: str) -> str:
    """A defence's name in text and figures."""
    return DEFENSES[name].title if name in DEFENSES else name


def objective_title(name: str) -> str:
    """A training objective's name in text and figures."""
    return OBJECTIVES[name].title if name in OBJECTIVES else name


def uses_mixup(objective: str | None) -> bool:
    """Whether an objective trains on mixtures of images."""
    return objective is not None and objective in OBJECTIVES and OBJECTIVES[objective].uses_mixup


def without_mixup(objective: str) -> list[str]:
    """The objectives that differ from one with mixup in that they do not mix."""
    return [OBJECTIVES[objective].without_mixup]


def threat_model_rank(name: str) -> int:
    """The place of a threat model in the table; unknown ones come last."""
    return [*THREAT_MODELS, name].index(name)


def threat_model_title(name: str) -> str:
    """A threat model's heading."""
    return THREAT_MODELS.get(name, name)


def why_missing(threat_model: str) -> str:
    """Why a row may have no attack of a threat model."""
    needs = {entry.requires for entry in ATTACKS.values() if entry.threat_model == threat_model}
    if reason := " or ".join(sorted(needs - {""})):
        return f"{threat_model_title(threat_model)}: the attack {reason}."
    return "Not every attack was run on every row."


def in_worst_case(threat_model: str) -> bool:
    """Whether attacks of a threat model count towards the worst case: not if they know the seed."""
    return all(e.worst_case for e in ATTACKS.values() if e.threat_model == threat_model)
