"""Attackers who know the defence: what their numbers say in sentences, and the table's columns.

Everything follows from the "adaptive" part of results.json. A defence is compared with its own
model without defence, each in its worst case over all attacks. A difference is called more or less
only if its 95% interval says so; and a number whose attacks failed one of their own checks is not
to be trusted, neither for itself nor in a comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

Entry = dict[str, Any]
Conclusion = Literal["within noise", "really more", "really less"]

#: The kinds of attack in the order of the table, and their headings.
GROUPS = {
    "oblivious": "Oblivious",
    "transfer": "Transfer",
    "paper": "Paper's adaptive",
    "official": "Official adaptive",
    "eot": "Through the defence (EOT)",
    "black-box": "Black-box",
    "peer": "Other libraries",
    "detector": "Detector-aware",
    "frozen": "Knows the seed",
}
#: Why a row may not have an attack of a kind.
FOR_MIXUP = "The paper's and the official adaptive attack are made for MI-OL and MI-PL only."
MISSING = {
    "transfer": "Transfer needs other models in the run.",
    "paper": FOR_MIXUP,
    "official": FOR_MIXUP,
    "detector": "Detector-aware attacks need a detector in the defence, as MI-Combined has.",
    "frozen": "A model without draws has no seed to know.",
}
#: What one defence does, and what several do, for each conclusion.
IN_SUMMARY: dict[Conclusion, tuple[str, str]] = {
    "really more": ("really adds to the base model", "really add to the base model"),
    "really less": ("really takes from the base model", "really take from the base model"),
    "within noise": ("makes no difference beyond noise", "make no difference beyond noise"),
}
WARNING = "Do not trust this number"


@dataclass(frozen=True)
class Verdict:
    """What a defence adds to its model against an attacker who knows it."""

    title: str  # of the row
    change: str  # "adds 17.0 points (95%: 12.1 to 21.8) to the base model"
    conclusion: Conclusion
    beside: str  # the numbers behind it, and what the oblivious attack suggested
    broken: list[str]  # the failed checks of the row and of its base
    checked: bool  # whether any were run

    @property
    def sentence(self) -> str:
        """The whole change in one sentence."""
        return f"Against an attacker who knows the defence, {self.title} {self.change}."


@dataclass(frozen=True)
class Column:
    """One column of accuracies; ``over`` is the heading above its own, if there is one."""

    group: str
    over: str
    title: str
    cells: list[Entry | None]  # of each row

    @property
    def short(self) -> str:
        """The title without the words that stand above it already."""
        above = self.over.lower().split()
        return " ".join(w for w in self.title.split() if w.lower() not in above) or self.title

    @property
    def label(self) -> str:
        """The same as a narrow heading: it may break at any hyphen but that of PGD-50."""
        return re.sub(r"(?<=PGD)-(?=\d)", "\N{NON-BREAKING HYPHEN}", self.short)

    @property
    def missing(self) -> str:
        """What an empty cell means."""
        return MISSING.get(self.group, "Not every attack was run on every row.")


def block(adaptive: Entry) -> Entry:
    """What the report shows besides the numbers themselves."""
    rows = adaptive["rows"]
    columns = attack_columns(adaptive)
    return {
        "verdicts": verdicts(adaptive),
        "columns": columns,
        "headings": _headings(columns),
        "judged": judged(adaptive),
        "dashes": dashes(adaptive),
        "cost": [cost(row) for row in rows],
        "checks": [checks(row) for row in rows],
        "tally": [tally(row) for row in rows],
    }


def _headings(columns: list[Column]) -> list[tuple[str, list[tuple[int, Column]]]]:
    """The columns with their numbers, by the heading above them."""
    numbered = enumerate(columns, 1)
    return [(over, list(some)) for over, some in groupby(numbered, key=lambda c: c[1].over)]


def verdicts(adaptive: Entry) -> list[Verdict]:
    """One for each row that has a base to be compared with."""
    bases = {row["title"]: row for row in adaptive["rows"] if row["base"] is None}
    return [
        _verdict(row, bases[row["base"]])
        for row in adaptive["rows"]
        if row["versus_base"] is not None
    ]


def _verdict(row: Entry, base: Entry) -> Verdict:
    value, low, high = (row["versus_base"][key] for key in ("difference", "low", "high"))
    conclusion: Conclusion = "within noise"
    if low > 0:
        conclusion = "really more"
        change = f"adds {_points(value)} points (95%: {_points(low)} to {_points(high)}) to"
    elif high < 0:
        conclusion = "really less"
        change = f"takes {_points(-value)} points (95%: {_points(-high)} to {_points(-low)}) from"
    else:
        change = f"adds {signed(value)} points (95%: {signed(low)} to {signed(high)}) to"
    left, before = (_points(r["worst"]["robust"]["accuracy"]) for r in (row, base))
    beside = f"Worst case {left}%, against {before}% for {base['title']} alone"
    ours, theirs = _oblivious(row), _oblivious(base)
    if ours is not None and theirs is not None:
        beside += f"; the oblivious attack suggests {signed(ours - theirs)}"
    if not row["checks"]:
        beside += "; no checks of the attacks were run"
    broken = [failure for r in (row, base) for failure in failures(r)]
    return Verdict(
        row["title"],
        f"{change} the base model",
        conclusion,
        f"{beside}.",
        broken,
        bool(row["checks"]),
    )


def _oblivious(row: Entry) -> float | None:
    """The lowest accuracy under attacks that ignore the defence."""
    found = [a["robust"]["accuracy"] for a in row["attacks"] if a["group"] == "oblivious"]
    return min(found, default=None)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def signed(share: float) -> str:
    """A difference in percentage points with its sign; nothing has none.

    >>> signed(-0.004), signed(0.17), signed(-0.0001)
    ('-0.4', '+17.0', '0.0')
    """
    text = f"{100 * share:+.1f}"
    return "0.0" if float(text) == 0 else text


def verdict_lines(adaptive: Entry | None) -> list[str]:
    """All verdicts, then all failed checks, for the terminal and for table.md."""
    if not adaptive:
        return []
    lines = [
        f"{verdict.sentence[:-1]}: {verdict.conclusion}. {verdict.beside}"
        for verdict in verdicts(adaptive)
    ]
    return lines + warnings(adaptive)


def warnings(adaptive: Entry) -> list[str]:
    """Every failed check in a line."""
    return [f"{WARNING}: {failure}" for row in adaptive["rows"] for failure in failures(row)]


def failures(row: Entry) -> list[str]:
    """A row's failed checks, each in a line.

    They warn of robustness that may not be there; where the worst case leaves none, there is none
    to be wrong about, and the line says so.
    """
    nothing = row["worst"]["robust"]["accuracy"] == 0
    aside = " The worst case over all attacks leaves nothing all the same." if nothing else ""
    return [f"{row['title']}: {told(check)}{aside}" for check in checks(row)["failed"]]


def headline(adaptive: Entry | None) -> str:
    """All verdicts in a few words, to stand above what oblivious attacks say."""
    if not adaptive or not (found := verdicts(adaptive)):
        return ""
    change = {row["title"]: row["versus_base"] for row in adaptive["rows"]}
    told = []
    for conclusion, (one, several) in IN_SUMMARY.items():
        titles = [v.title for v in found if v.conclusion == conclusion]
        if conclusion != "within noise":
            titles = [f"{title} ({signed(change[title]['difference'])} points)" for title in titles]
        if titles:
            told.append(f"{', '.join(titles)} {several if titles[1:] else one}")
    text = f"Against an attacker who knows the defence, {'; '.join(told)}."
    if doubtful := [v.title for v in found if v.broken]:
        text += f" Not to be trusted, because checks of the attacks failed: {', '.join(doubtful)}."
    return f"{text} The rest of this summary is about attackers who do not know it."


def judged(adaptive: Entry) -> str:
    """How the numbers about attackers who know the defence came about, in a few sentences."""
    return (
        f"Accuracy in percent on {adaptive['points']} test points under attack "
        f"({adaptive['norm']}, eps {adaptive['eps']:.4g}); randomised defences average "
        f"{adaptive['draws']} draws. Each example is judged by {adaptive['repeats']} answers of "
        "the defence with fresh draws that no attack has seen, and the 95% intervals cover both "
        "the points and the draws. The worst case takes for each point the attack that fools the "
        "defence most often on one set of draws, and is reported on another."
    )


def attack_columns(adaptive: Entry) -> list[Column]:
    """Clean, every attack by what it knows, the worst case; apart from it, the known seed."""
    rows = adaptive["rows"]
    found = dict.fromkeys((a["group"], a["title"]) for row in rows for a in row["attacks"])
    order = [*GROUPS, *(group for group, _ in found if group not in GROUPS)]
    attacks = [
        Column(group, GROUPS.get(group, group), title, [_cell(row, group, title) for row in rows])
        for group, title in sorted(found, key=lambda key: order.index(key[0]))
    ]
    worst = [row["worst"]["robust"] for row in rows]
    return [
        Column("clean", "", "Clean", [row["clean"] for row in rows]),
        *(column for column in attacks if column.group != "frozen"),
        Column("worst", "Worst case", "mean", worst),
        Column("any draw", "Worst case", "any draw", [entry["any_draw"] for entry in worst]),
        *(column for column in attacks if column.group == "frozen"),
    ]


def _cell(row: Entry, group: str, title: str) -> Entry | None:
    same = (a["robust"] for a in row["attacks"] if (a["group"], a["title"]) == (group, title))
    return next(same, None)


def dashes(adaptive: Entry) -> list[str]:
    """Why some cells of the table are empty."""
    empty = (column for column in attack_columns(adaptive) if None in column.cells)
    return list(dict.fromkeys(column.missing for column in empty))


def cost(row: Entry) -> tuple[float, float]:
    """Forward and backward passes per point of all attacks on a row together."""
    attacks = row["attacks"]
    return sum(a["forward"] for a in attacks), sum(a["backward"] for a in attacks)


def checks(row: Entry) -> dict[str, list[Entry]]:
    """A row's checks by how they went."""
    words = {True: "passed", False: "failed", None: "undecided"}
    sorted_out: dict[str, list[Entry]] = {word: [] for word in words.values()}
    for check in row["checks"]:
        sorted_out[words[check["passed"]]].append(check)
    return sorted_out


def told(check: Entry) -> str:
    """A check in a line."""
    return f"{check['name']}: {check['detail']}"


def tally(row: Entry) -> str:
    """How many checks passed, as in "7 of 9 checks passed, 1 failed, 1 undecided"."""
    if not row["checks"]:
        return "no checks were run"
    count = {word: len(some) for word, some in checks(row).items()}
    passed = f"{count.pop('passed')} of {len(row['checks'])} checks passed"
    return ", ".join([passed, *(f"{number} {word}" for word, number in count.items() if number)])
