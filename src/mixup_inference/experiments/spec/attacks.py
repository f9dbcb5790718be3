"""The section [adaptive] of a spec: adaptive attacks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from mixup_inference.attacks import attack_title, get_attack, suite
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec import fields
from mixup_inference.experiments.spec.fields import Count, NotNegative, OpenTable, Table, Title
from mixup_inference.validation import check_number


class AdaptiveAttackSpec(OpenTable):
    """One adaptive attack; further keys are its settings.

    ``attack`` is a name of the registry, ``library:Name`` of another library's, or
    ``package.module:function`` of your own. ``surrogates`` are the models that a transfer attack is
    crafted on (all others by default).
    """

    attack: str
    title: Title = ""
    surrogates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its title in tables."""
        return self.title or attack_title(self.attack, self.settings)

    def smoke(self) -> AdaptiveAttackSpec:
        """Return the same attack with as little work as possible."""
        least = {"steps": 1, "restarts": 1}
        small = {key: least.get(key, 2) for key in get_attack(self.attack).counts}
        return AdaptiveAttackSpec.model_validate(
            self.model_dump() | {"title": f"{self.name} (smoke)"} | small
        )

    @model_validator(mode="after")
    def _valid(self) -> AdaptiveAttackSpec:
        entry = get_attack(self.attack)
        if self.surrogates and not entry.surrogates:
            raise InputError(f"surrogates are for transfer, not for {self.attack}.")
        entry.check(self.settings)
        return self


def standard_attacks() -> tuple[AdaptiveAttackSpec, ...]:
    """Return the standard suite: the attacks of an adaptive evaluation that names none."""
    return tuple(
        AdaptiveAttackSpec.model_validate({"attack": entry.name, **entry.suite_settings})
        for entry in suite("standard")
    )


class AdaptiveSpec(Table):
    """Adaptive attacks, with eps and norm of [attack], untargeted.

    ``rows``: titles of the rows that are attacked (all by default); the undefended row of each
    model comes along. ``points``: how many test points. ``repeats``: how often the success of each
    example is evaluated, with fresh draws. ``checks``: how many points for the checks of the
    attacks. ``samples``: the numbers of adaptive samples of Figure 4, with ``figure_steps`` steps
    and on ``figure_points`` points. ``gallery``: how many examples at twice eps (Figure 5).
    ``detectors``: models whose detectors are attacked: one for each of ``detector_scores``, with
    the mixing ratio ``detector_lam``.

    EOT-PGD is always among the attacks: without it no row could be compared with another, and it
    is the attack that is checked, drawn in Figure 4 and shown in Figure 5.
    """

    rows: tuple[str, ...] = ()
    points: Count = 200
    repeats: Count = 5
    attacks: Annotated[
        tuple[AdaptiveAttackSpec, ...], Field(min_length=1, default_factory=standard_attacks)
    ]
    checks: NotNegative = 50
    samples: tuple[Count, ...] = ()
    figure_steps: Count = 10
    figure_points: Count = 100
    gallery: NotNegative = 0
    detectors: tuple[str, ...] = ()
    detector_scores: Annotated[tuple[str, ...], Field(min_length=1)] = ("MI-PL",)
    detector_lam: float = 0.5

    def first(self, name: str) -> AdaptiveAttackSpec:
        """The first attack of this name; with its defaults if there is none."""
        found = (attack for attack in self.attacks if attack.attack == name)
        return next(found, AdaptiveAttackSpec(attack=name))

    @property
    def main(self) -> AdaptiveAttackSpec:
        """The attack that is checked, drawn in Figure 4 and shown in Figure 5."""
        return self.first("eot-pgd")

    @property
    def candidates(self) -> tuple[AdaptiveAttackSpec, ...]:
        """All attacks, the main one among them."""
        return self.attacks if self.main in self.attacks else (*self.attacks, self.main)

    @model_validator(mode="after")
    def _valid(self) -> AdaptiveSpec:
        check_number(self.detector_lam, what="detector_lam", least=0, most=1)
        for score in self.detector_scores:
            SCORES[score]
        names = [attack.name for attack in self.attacks]
        fields.check_different(names, "two attacks are called {}; give them titles.")
        return self
