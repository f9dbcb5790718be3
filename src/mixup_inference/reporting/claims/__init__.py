"""The paper's claims, and what a run says about each: holds, does not hold, undecided.

They are about training objectives: a model of unknown training is not considered.
"""

from __future__ import annotations

from mixup_inference.reporting.claims.accuracy import accuracy_claims
from mixup_inference.reporting.claims.base import Claim, Verdict
from mixup_inference.reporting.claims.theory import adaptive_claims, figure_claims
from mixup_inference.reporting.schema import Results

__all__ = ["Claim", "Verdict", "claims"]

CLAIMS = (accuracy_claims, figure_claims, adaptive_claims)


def claims(results: Results) -> list[Claim]:
    """The paper's claims that this run has data on."""
    return [claim for find in CLAIMS for claim in find(results)]
