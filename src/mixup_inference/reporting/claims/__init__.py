"""The paper's claims, and what a run says of each: holds, does not hold, undecided.

Everything follows from results.json. They are about objectives: a model that was brought along and
does not say how it was trained is not judged.
"""

from __future__ import annotations

from typing import Any

from mixup_inference.reporting.claims.accuracy import claims_of_table, claims_of_trainings
from mixup_inference.reporting.claims.base import Claim, Verdict
from mixup_inference.reporting.claims.theory import claims_of_adaptive, claims_of_figures

__all__ = ["Claim", "Verdict", "claims"]


def claims(results: dict[str, Any]) -> list[Claim]:
    """The paper's claims that this run has something to say about."""
    made = [
        *claims_of_table(results),
        *claims_of_trainings(results),
        *claims_of_figures(results),
        *claims_of_adaptive(results),
    ]
    return [claim for claim in made if claim is not None]
