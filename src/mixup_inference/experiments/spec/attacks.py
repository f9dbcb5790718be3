"""The section [adaptive] of a spec: attacks that know the defence."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from mixup_inference.attacks import attack_title, check_settings, get_attack
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec.fields import Count, NotNegative, Table, Title
from mixup_inference.validation import check_number


class KnowingSpec(Table):
    """One attack that knows the defence; further keys are its settings.

    ``attack`` is a name of the registry, or ``library:Name`` of another library's. ``surrogates``
    are the models that a transfer attack is crafted on (all others by default).
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    attack: str
    title: Title = ""
    surrogates: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's settings."""
        return dict(self.model_extra or {})

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return self.title or attack_title(self.attack, self.settings)

    def smoke(self) -> KnowingSpec:
        """The same attack with as little work as it can have."""
        least = {"steps": 1, "draws": 2, "queries": 2, "samples": 2, "restarts": 1}
        known = get_attack(self.attack).defaults
        small = {key: value for key, value in least.items() if key in known}
        return KnowingSpec.model_validate(
            self.model_dump() | {"title": f"{self.name} (smoke)"} | small
        )

    @model_validator(mode="after")
    def _valid(self) -> KnowingSpec:
        if self.surrogates and self.attack != "transfer":
            raise InputError(f"surrogates are for transfer, not for {self.attack}.")
        check_settings(self.attack, self.settings)
        return self


def standard_attacks() -> tuple[KnowingSpec, ...]:
    """What an adaptive evaluation runs if the spec does not say."""
    return (
        KnowingSpec(attack="oblivious"),
        KnowingSpec(attack="transfer"),
        KnowingSpec(attack="official-adaptive"),
        KnowingSpec(attack="paper-adaptive"),
        KnowingSpec(attack="eot-pgd"),
        KnowingSpec.model_validate({"attack": "apgd", "loss": "dlr"}),
        KnowingSpec(attack="detector-aware"),
        KnowingSpec(attack="square"),
        KnowingSpec(attack="frozen"),
    )


class AdaptiveSpec(Table):
    """Attacks that know the defence, with eps and norm of [attack], untargeted.

    ``rows``: titles of the rows that are attacked (all by default); the undefended row of each
    model comes along. ``points``: so many test points. ``repeats``: how often each example is
    judged with fresh draws. ``checks``: so many points for the checks that the attacks work.
    ``samples``: the numbers of adaptive samples of Figure 4, with ``figure_steps`` steps and on
    ``figure_points`` points. ``gallery``: so many examples at twice eps (Figure 5).
    ``detectors``: models whose MI-PL detector is attacked, with the ratio ``detector_lam``.

    EOT-PGD is always among the attacks: without it no row could be compared with another, and it
    is the attack that is checked, drawn in Figure 4 and shown in Figure 5.
    """

    rows: tuple[str, ...] = ()
    points: Count = 200
    repeats: Count = 5
    attacks: Annotated[
        tuple[KnowingSpec, ...], Field(min_length=1, default_factory=standard_attacks)
    ]
    checks: NotNegative = 50
    samples: tuple[Count, ...] = ()
    figure_steps: Count = 10
    figure_points: Count = 100
    gallery: NotNegative = 0
    detectors: tuple[str, ...] = ()
    detector_lam: float = 0.5

    @property
    def main(self) -> KnowingSpec:
        """The attack that is checked, drawn in Figure 4 and shown in Figure 5."""
        found = [attack for attack in self.attacks if attack.attack == "eot-pgd"]
        return found[0] if found else KnowingSpec(attack="eot-pgd")

    @property
    def candidates(self) -> tuple[KnowingSpec, ...]:
        """All attacks, the main one among them."""
        return self.attacks if self.main in self.attacks else (*self.attacks, self.main)

    @model_validator(mode="after")
    def _valid(self) -> AdaptiveSpec:
        check_number(self.detector_lam, what="detector_lam", least=0, most=1)
        names = [attack.name for attack in self.attacks]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two attacks are called {name!r}; give them titles.")
        return self
