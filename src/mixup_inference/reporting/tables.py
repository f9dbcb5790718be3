"""The tables as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence

from mixup_inference.reporting.adaptive import adaptive_section, verdict_lines
from mixup_inference.reporting.formatting import capitalize, csv_text, format_eps, format_interval
from mixup_inference.reporting.schema import Adaptive, Results, Robust
from mixup_inference.utils.text import markdown_words, spreadsheet_cell


def markdown(results: Results) -> str:
    """The tables with intervals, for a README or a paper's appendix."""
    columns = results["columns"]
    head = ["Method", *(markdown_words(capitalize(c)) for c in columns), "Passes per image"]
    rows = []
    for row in results["rows"]:
        cells = [format_interval(row["cells"][c], row["cells"][c]["total"]) for c in columns]
        rows.append([markdown_words(row["title"]), *cells, f"{row['passes_per_image']:.1f}"])
    lines = [f"# {markdown_words(results['title'])}", "", caption(results), ""]
    lines += table_lines(head, rows)
    if adaptive := results.get("adaptive"):
        lines += ["", *adaptive_lines(adaptive)]
    return "\n".join(lines) + "\n"


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table: text in the first column, numbers in all others."""
    written = (" | ".join(row) for row in (head, *rows))
    lines = [f"| {line} |" for line in written]
    return [lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]]


def adaptive_lines(adaptive: Adaptive) -> list[str]:
    """The table of adaptive attacks, with the verdicts and the failed checks."""
    section = adaptive_section(adaptive)
    columns = section["columns"]
    named = (f"{c.over}: {c.short}" if c.over else c.title for c in columns)
    head = ["Method", *map(markdown_words, named), "Passes per point, forward / backward", "Checks"]
    rows = []
    for number, row in enumerate(adaptive["rows"]):
        cells = [column.cells[number] for column in columns]
        shown = [format_interval(c, adaptive["points"]) if c else "\N{EN DASH}" for c in cells]
        passes = " / ".join(f"{count:,.0f}" for count in section["cost"][number])
        rows.append([markdown_words(row["title"]), *shown, passes, section["counts"][number]])
    return [
        "## Adaptive attacks",
        "",
        section["method"],
        "",
        *(f"- {markdown_words(line)}" for line in verdict_lines(adaptive)),
        "",
        *table_lines(head, rows),
        *(["", f"A dash: not run. {' '.join(missing)}"] if (missing := section["missing"]) else []),
    ]


def caption(results: Results) -> str:
    """What the table shows."""
    spec = results["spec"]
    attacks, leak = "without an attack", ""
    if (attack := spec.get("attack")) is not None:
        attacks = (
            f"the attacks are oblivious: they know the undefended model only ({attack['norm']}, "
            f"eps {format_eps(attack['eps'])}, step {format_eps(attack['step'])}, "
            f"{attack['labels']} labels)"
        )
    if spec["data"].get("pool") == "test":
        leak = " They draw from the whole test set, including the test points and their labels."
    return (
        f"Accuracy in percent on {results['points']['test']} test points, with 95% Wilson "
        f"intervals; {attacks}. Randomised defences average {spec['draws']} draws.{leak}"
    )


def as_csv(results: Results) -> str:
    """The table as CSV: each accuracy and the two ends of its interval, as shares."""
    ends = ("", " low", " high")
    head = [f"{column}{end}" for column in results["columns"] for end in ends]
    rows = []
    for row in results["rows"]:
        cells = [row["cells"][column] for column in results["columns"]]
        numbers = [f"{share:.4f}" for c in cells for share in (c["accuracy"], c["low"], c["high"])]
        words = map(spreadsheet_cell, (row["title"], row["model"], row["defense"]))
        rows.append([*words, *numbers, f"{row['passes_per_image']:.2f}"])
    return csv_text([["method", "model", "defense", *head, "passes per image"], *rows])


def adaptive_csv(adaptive: Adaptive) -> str:
    """One line for each row and attack, including the clean accuracy and the worst case."""
    head = ("row", "attack", "group", "accuracy", "low", "high", "any_draw")
    lines: list[list[object]] = [[*head, "forward", "backward", "seconds"]]

    def add(names: tuple[str, str, str], robust: Robust, *spent: object) -> None:
        shares = (robust["accuracy"], robust["low"], robust["high"], robust["any_draw"]["accuracy"])
        lines.append([*map(spreadsheet_cell, names), *(f"{s:.4f}" for s in shares), *spent])

    for row in adaptive["rows"]:
        title = row["title"]
        add((title, "clean", "clean"), row["clean"], "", "", "")
        for a in row["attacks"]:
            names = (title, a["title"], a["group"])
            add(names, a["robust"], a["forward"], a["backward"], a["seconds"])
        add((title, "worst case", "worst"), row["worst"]["robust"], "", "", "")
    return csv_text(lines)
