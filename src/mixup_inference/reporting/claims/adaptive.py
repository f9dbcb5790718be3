"""The claim that attackers who know the defence decide: does MI-OL add anything?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mixup_inference.reporting.adaptive import failures, verdicts
from mixup_inference.reporting.claims.claim import MARGIN, TRAINED, Claim, Verdict, verdict_of
from mixup_inference.reporting.trainings import objective_of


def claims_of_adaptive(results: dict[str, Any]) -> Iterable[Claim]:
    """One for each row of MI-OL on a model that was trained with mixup."""
    adaptive = results.get("adaptive")
    if not adaptive:
        return
    models = {row["title"]: row["model"] for row in results["rows"] if row["defense"] == "mi-ol"}
    rows = {row["title"]: row for row in adaptive["rows"]}
    for found in verdicts(adaptive):
        objective = objective_of(results, models[found.title]) if found.title in models else None
        if objective not in TRAINED:
            continue
        row = rows[found.title]
        change = row["versus_base"]
        gain = (change["difference"], change["low"], change["high"])
        verdict = verdict_of([gain], worth=MARGIN)
        if not _to_be_trusted(verdict, row, rows[row["base"]]):
            verdict = "undecided"
        doubt = " Checks of the attacks failed." if found.broken else ""
        yield Claim(
            f"MI-OL makes {TRAINED[objective]} more robust to attackers who know it "
            f"[{found.title}].",
            "Section 4.4, Figure 4",
            verdict,
            f"{found.title} {found.change}. {found.beside}{doubt}",
        )


def _to_be_trusted(verdict: Verdict, row: dict[str, Any], base: dict[str, Any]) -> bool:
    """An attack that is too weak makes a row look better than it is.

    So a gain is believed if the row's attacks passed their checks; and that there is none, if those
    of the base did, or left nothing of it.
    """
    if verdict == "holds":
        return bool(row["checks"]) and not failures(row)
    return not failures(base) or base["worst"]["robust"]["accuracy"] == 0
