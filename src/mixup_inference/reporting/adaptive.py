"""Adaptive attacks: the verdict on each defence, the columns of the table, and warnings.

A defence is compared with its own undefended model, each in its worst case over all attacks. A
difference is significant only if its 95% interval excludes zero. A number whose attacks failed one
of their own checks is unreliable, by itself and in a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal

from mixup_inference.metrics.accuracy import IntervalEstimate
from mixup_inference.reporting import labels
from mixup_inference.reporting.formatting import format_change, format_eps, format_points, percent
from mixup_inference.reporting.schema import Adaptive, AdaptiveRow, Check

Conclusion = Literal["significantly higher", "significantly lower", "not significant"]

#: What one defence does to robust accuracy, and what several do, for each conclusion.
_SUMMARY: dict[Conclusion, tuple[str, str]] = {
    "significantly higher": ("significantly increases", "significantly increase"),
    "significantly lower": ("significantly decreases", "significantly decrease"),
    "not significant": ("has no significant effect on", "have no significant effect on"),
}
PASSES: tuple[Literal["forward"], Literal["backward"]] = ("forward", "backward")
WARNING = "Do not trust this number"


@dataclass(frozen=True)
class AdaptiveVerdict:
    """The effect of a defence on its model's robust accuracy under adaptive attacks."""

    row: AdaptiveRow
    base: AdaptiveRow  # the undefended row of its model
    change: IntervalEstimate

    @property
    def title(self) -> str:
        """The title of the row."""
        return self.row["title"]

    @property
    def conclusion(self) -> Conclusion:
        """What the interval of the change says."""
        _, low, high = self.change
        if low <= 0 <= high:
            return "not significant"
        return "significantly higher" if low > 0 else "significantly lower"

    @property
    def failures(self) -> list[str]:
        """The failed checks of the row and of its base."""
        return failed_checks(self.row) + failed_checks(self.base)

    @property
    def context(self) -> str:
        """The two accuracies, and what the oblivious attack suggests."""
        both = (self.row, self.base)
        own, bare = (percent(row["worst"]["robust"]["accuracy"]) for row in both)
        text = f"Worst-case accuracy {own}%, against {bare}% for {self.base['title']} alone"
        oblivious = [
            [a["robust"]["accuracy"] for a in row["attacks"] if a["group"] == "oblivious"]
            for row in both
        ]
        if all(oblivious):
            suggested = format_points(min(oblivious[0]) - min(oblivious[1]))
            text += f"; the oblivious attack suggests a change of {suggested} points"
        if not self.row["checks"]:
            text += "; no checks of the attacks were run"
        return f"{text}."

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


def adaptive_section(adaptive: Adaptive) -> dict[str, Any]:
    """Everything that the report shows beside the entries of results.json."""
    rows = adaptive["rows"]
    columns = attack_columns(adaptive)
    by_heading = groupby(enumerate(columns, 1), key=lambda numbered: numbered[1].over)
    missing = [labels.why_missing(column.group) for column in columns if None in column.cells]
    return {
        "verdicts": adaptive_verdicts(adaptive),
        "columns": columns,
        "headings": [(over, list(some)) for over, some in by_heading],
        "has_known_seed": not all(labels.in_worst_case(column.group) for column in columns),
        "method": _describe_method(adaptive),
        "missing": list(dict.fromkeys(missing)),
        "cost": [[sum(a[way] for a in row["attacks"]) for way in PASSES] for row in rows],
        "checks": [checks_by_outcome(row) for row in rows],
        "counts": [_format_check_counts(row) for row in rows],
    }


def adaptive_verdicts(adaptive: Adaptive) -> list[AdaptiveVerdict]:
    """One verdict for each row that has an undefended row to be compared with."""
    rows = {row["title"]: row for row in adaptive["rows"]}
    return [
        AdaptiveVerdict(
            row, rows[row["base"]], (change["difference"], change["low"], change["high"])
        )
        for row in adaptive["rows"]
        if (change := row["versus_base"]) is not None and row["base"] is not None
    ]


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


def _describe_method(adaptive: Adaptive) -> str:
    """How the numbers under adaptive attacks were measured."""
    return (
        f"Accuracy in percent on {adaptive['points']} test points under attack "
        f"({adaptive['norm']}, eps {format_eps(adaptive['eps'])}); randomised defences average "
        f"{adaptive['draws']} draws. Each adversarial example is evaluated {adaptive['repeats']} "
        "times with fresh draws that no attack has seen, and the 95% intervals cover both points "
        "and draws. The worst case takes, for each point, the attack that fools the defence most "
        "often on one set of draws, and reports it on another."
    )


def attack_columns(adaptive: Adaptive) -> list[AttackColumn]:
    """Clean, every attack by threat model, the worst case, and attacks that are no part of it."""
    rows = adaptive["rows"]
    found = [{(a["group"], a["title"]): a["robust"] for a in row["attacks"]} for row in rows]
    names = sorted(dict.fromkeys(chain(*found)), key=lambda name: labels.threat_model_rank(name[0]))
    attacks = [
        AttackColumn(
            group,
            labels.threat_model_title(group),
            title,
            [cells.get((group, title)) for cells in found],
        )
        for group, title in names
    ]
    worst = [row["worst"]["robust"] for row in rows]
    return [
        AttackColumn("clean", "", "Clean", [row["clean"] for row in rows]),
        *(column for column in attacks if labels.in_worst_case(column.group)),
        AttackColumn("worst", "Worst case", "mean", worst),
        AttackColumn("any draw", "Worst case", "any draw", [entry["any_draw"] for entry in worst]),
        *(column for column in attacks if not labels.in_worst_case(column.group)),
    ]


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


def _format_check_counts(row: AdaptiveRow) -> str:
    """How many checks passed, as in "7 of 9 checks passed, 1 failed, 1 inconclusive"."""
    if not row["checks"]:
        return "no checks were run"
    count = {name: len(some) for name, some in checks_by_outcome(row).items()}
    passed = f"{count.pop('passed')} of {len(row['checks'])} checks passed"
    return ", ".join([passed, *(f"{number} {name}" for name, number in count.items() if number)])
