"""Adaptive attacks: the verdict on each defence, the columns of the table, and warnings.

A defence is compared with its own undefended model, each in its worst case over all attacks. A
difference is significant only if its 95% interval excludes zero. A number whose attacks failed one
of their own checks is unreliable, by itself and in a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from mixup_inference.metrics.accuracy import IntervalEstimate
from mixup_inference.reporting.formatting import format_change, format_points, percent
from mixup_inference.reporting.labels import (
    in_worst_case,
    threat_model_rank,
    threat_model_title,
    why_missing,
)
from mixup_inference.reporting.schema import Adaptive, AdaptiveRow, Check

Conclusion = Literal["significantly higher", "significantly lower", "not significant"]

#: What one defence does to robust accuracy, and what several do, for each conclusion.
_SUMMARY: dict[Conclusion, tuple[str, str]] = {
    "significantly higher": ("significantly increases", "significantly increase"),
    "significantly lower": ("significantly decreases", "significantly decrease"),
    "not significant": ("has no significant effect on", "have no significant effect on"),
}
WARNING = "Do not trust this number"


@dataclass(frozen=True)
class AdaptiveVerdict:
    """The effect of a defence on its model's robust accuracy under adaptive attacks."""

    title: str  # of the row
    change: IntervalEstimate
    conclusion: Conclusion
    context: str  # the two accuracies, and what the oblivious attack suggests
    failures: list[str]  # failed checks of the row and of its base
    checked: bool  # whether any checks were run

    @property
    def effect(self) -> str:
        """The change as a clause without its subject."""
        change = format_change(self.change)
        return f"changes robust accuracy by {change} relative to the undefended model"

    @property
    def sentence(self) -> str:
        """The change and the conclusion."""
        return f"Under adaptive attacks, {self.title} {self.effect}: {self.conclusion}."


@dataclass(frozen=True)
class AttackColumn:
    """One column of accuracies; ``over`` is the heading above its own, if there is one."""

    group: str
    over: str
    title: str
    cells: Sequence[Mapping[str, Any] | None]  # of each row

    @property
    def short(self) -> str:
        """The title without the words of the heading above it."""
        above = self.over.lower().split()
        return " ".join(w for w in self.title.split() if w.lower() not in above) or self.title

    @property
    def label(self) -> str:
        """The short title for a narrow heading: PGD-50 does not break at its hyphen."""
        return re.sub(r"(?<=PGD)-(?=\d)", "\N{NON-BREAKING HYPHEN}", self.short)

    @property
    def missing(self) -> str:
        """What an empty cell means."""
        return why_missing(self.group)


def adaptive_section(adaptive: Adaptive) -> dict[str, Any]:
    """Everything that the report shows beside the entries of results.json."""
    rows = adaptive["rows"]
    columns = attack_columns(adaptive)
    by_heading = groupby(enumerate(columns, 1), key=lambda numbered: numbered[1].over)
    return {
        "verdicts": adaptive_verdicts(adaptive),
        "columns": columns,
        "headings": [(over, list(some)) for over, some in by_heading],
        "has_known_seed": not all(in_worst_case(column.group) for column in columns),
        "method": describe_method(adaptive),
        "missing": explain_missing(adaptive),
        "cost": [cost(row) for row in rows],
        "checks": [checks_by_outcome(row) for row in rows],
        "counts": [format_check_counts(row) for row in rows],
    }


def adaptive_verdicts(adaptive: Adaptive) -> list[AdaptiveVerdict]:
    """One verdict for each row that has an undefended row to be compared with."""
    bases = {row["title"]: row for row in adaptive["rows"] if row["base"] is None}
    return [
        _verdict(row, bases[row["base"]], (change["difference"], change["low"], change["high"]))
        for row in adaptive["rows"]
        if (change := row["versus_base"]) is not None and row["base"] is not None
    ]


def _verdict(row: AdaptiveRow, base: AdaptiveRow, change: IntervalEstimate) -> AdaptiveVerdict:
    _, low, high = change
    conclusion: Conclusion = "not significant"
    if low > 0 or high < 0:
        conclusion = "significantly higher" if low > 0 else "significantly lower"
    own, bare = (percent(r["worst"]["robust"]["accuracy"]) for r in (row, base))
    context = f"Worst-case accuracy {own}%, against {bare}% for {base['title']} alone"
    oblivious = [_oblivious_accuracy(r) for r in (row, base)]
    if oblivious[0] is not None and oblivious[1] is not None:
        suggested = format_points(oblivious[0] - oblivious[1])
        context += f"; the oblivious attack suggests a change of {suggested} points"
    if not row["checks"]:
        context += "; no checks of the attacks were run"
    failures = [failure for r in (row, base) for failure in failed_checks(r)]
    return AdaptiveVerdict(
        row["title"], change, conclusion, f"{context}.", failures, bool(row["checks"])
    )


def _oblivious_accuracy(row: AdaptiveRow) -> float | None:
    """The lowest accuracy under attacks that ignore the defence."""
    found = [a["robust"]["accuracy"] for a in row["attacks"] if a["group"] == "oblivious"]
    return min(found, default=None)


def verdict_lines(adaptive: Adaptive | None) -> list[str]:
    """All verdicts, then all failed checks, for the terminal and for table.md."""
    if not adaptive:
        return []
    lines = [f"{verdict.sentence} {verdict.context}" for verdict in adaptive_verdicts(adaptive)]
    failures = [failure for row in adaptive["rows"] for failure in failed_checks(row)]
    return lines + [f"{WARNING}: {failure}" for failure in failures]


def failed_checks(row: AdaptiveRow) -> list[str]:
    """A row's failed checks, one line each.

    A failed check warns that robustness may be overestimated; a worst-case accuracy of zero cannot
    be, and the line says so.
    """
    nothing = row["worst"]["robust"]["accuracy"] == 0
    aside = " The worst-case accuracy is 0% nevertheless." if nothing else ""
    failed = checks_by_outcome(row)["failed"]
    return [f"{row['title']}: {format_check(check)}{aside}" for check in failed]


def summarize_adaptive(adaptive: Adaptive | None) -> str:
    """All verdicts in a few words, to stand above the results of oblivious attacks."""
    if not adaptive or not (verdicts := adaptive_verdicts(adaptive)):
        return ""
    clauses = []
    for conclusion, (singular, plural) in _SUMMARY.items():
        some = [v for v in verdicts if v.conclusion == conclusion]
        titles = [v.title for v in some]
        if conclusion != "not significant":
            titles = [f"{v.title} ({format_points(v.change[0])} points)" for v in some]
        if titles:
            verb = plural if titles[1:] else singular
            clauses.append(f"{', '.join(titles)} {verb} robust accuracy")
    text = f"Under adaptive attacks, {'; '.join(clauses)}."
    if unreliable := [v.title for v in verdicts if v.failures]:
        text += f" Unreliable, because checks of the attacks failed: {', '.join(unreliable)}."
    return f"{text} The rest of this summary is about oblivious attacks."


def describe_method(adaptive: Adaptive) -> str:
    """How the numbers under adaptive attacks were measured."""
    return (
        f"Accuracy in percent on {adaptive['points']} test points under attack "
        f"({adaptive['norm']}, eps {adaptive['eps']:.4g}); randomised defences average "
        f"{adaptive['draws']} draws. Each adversarial example is evaluated {adaptive['repeats']} "
        "times with fresh draws that no attack has seen, and the 95% intervals cover both points "
        "and draws. The worst case takes, for each point, the attack that fools the defence most "
        "often on one set of draws, and reports it on another."
    )


def attack_columns(adaptive: Adaptive) -> list[AttackColumn]:
    """Clean, every attack by threat model, the worst case, and attacks that are no part of it."""
    rows = adaptive["rows"]
    found = dict.fromkeys((a["group"], a["title"]) for row in rows for a in row["attacks"])
    attacks = [
        AttackColumn(
            group, threat_model_title(group), title, [_cell(r, group, title) for r in rows]
        )
        for group, title in sorted(found, key=lambda key: threat_model_rank(key[0]))
    ]
    worst = [row["worst"]["robust"] for row in rows]
    return [
        AttackColumn("clean", "", "Clean", [row["clean"] for row in rows]),
        *(column for column in attacks if in_worst_case(column.group)),
        AttackColumn("worst", "Worst case", "mean", worst),
        AttackColumn("any draw", "Worst case", "any draw", [entry["any_draw"] for entry in worst]),
        *(column for column in attacks if not in_worst_case(column.group)),
    ]


def _cell(row: AdaptiveRow, group: str, title: str) -> Mapping[str, Any] | None:
    same = (a["robust"] for a in row["attacks"] if (a["group"], a["title"]) == (group, title))
    return next(same, None)


def explain_missing(adaptive: Adaptive) -> list[str]:
    """Why some cells of the table are empty."""
    empty = (column for column in attack_columns(adaptive) if None in column.cells)
    return list(dict.fromkeys(column.missing for column in empty))


def cost(row: AdaptiveRow) -> tuple[float, float]:
    """Forward and backward passes per point of all attacks on a row together."""
    attacks = row["attacks"]
    return sum(a["forward"] for a in attacks), sum(a["backward"] for a in attacks)


def checks_by_outcome(row: AdaptiveRow) -> dict[str, list[Check]]:
    """A row's checks: passed, failed, inconclusive."""
    names = {True: "passed", False: "failed", None: "inconclusive"}
    found: dict[str, list[Check]] = {name: [] for name in names.values()}
    for check in row["checks"]:
        found[names[check["passed"]]].append(check)
    return found


def format_check(check: Check) -> str:
    """A check in one line."""
    return f"{check['name']}: {check['detail']}"


def format_check_counts(row: AdaptiveRow) -> str:
    """How many checks passed, as in "7 of 9 checks passed, 1 failed, 1 inconclusive"."""
    if not row["checks"]:
        return "no checks were run"
    count = {name: len(some) for name, some in checks_by_outcome(row).items()}
    passed = f"{count.pop('passed')} of {len(row['checks'])} checks passed"
    return ", ".join([passed, *(f"{number} {name}" for name, number in count.items() if number)])
