"""The documentation: its code blocks run, its links lead somewhere, its API pages are complete.

The blocks of a page run in order, in one process and one folder: Python and shell (``sh``). A
block with ``title="name"`` is written to that file instead. One that cannot run here stands below a
comment ``<!-- not run: reason -->``, and is counted.
"""

from __future__ import annotations

import os
import pkgutil
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import mixup_inference
from mixup_inference.attacks import ATTACKS
from mixup_inference.defenses import DEFENSES
from mixup_inference.detection import SCORES
from mixup_inference.training import OBJECTIVES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDES = [
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "results/README.md",
    "benchmarks/README.md",
]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?"
    r"```(?P<language>\w*)(?: title=\"(?P<title>[\w.-]+)\")?[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    reason: str | None
    language: str
    title: str | None
    code: str


def blocks(page):
    text = page.read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert text.count("\n```") == 2 * len(found), "a fence is not understood"
    return [Block(*block) for block in found]


WITH_CODE = [
    page
    for page in PAGES
    if any(b.language in ("python", "sh") and not b.reason for b in blocks(page))
]


def script(page):
    """The blocks of a page as one Python script."""
    lines = ["import subprocess as _subprocess"]
    for block in blocks(page):
        if block.reason or block.title:
            continue
        if block.language == "python":
            lines.append(block.code)
        elif block.language == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block.code]
            lines.append(f"_subprocess.run({command!r}, check=True)")
    return "\n".join(lines)


#: Pages that need an extra, with a package of it.
NEEDS = {"serving": "kserve"}


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    if find_spec(NEEDS.get(page.stem, "torch")) is None:
        pytest.skip("runs with `make serve-test`")
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)
    command = tmp_path / "bin" / "mixup-inference"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mixup_inference.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "page.py").write_text(script(page))
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    process = subprocess.Popen(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate()
        assert process.returncode == 0, out + err
    finally:
        with suppress(ProcessLookupError):  # whatever a page that failed left running
            os.killpg(process.pid, signal.SIGKILL)


def test_what_cannot_run_is_counted():
    """Whoever marks another block changes this number, and thinks twice."""
    marked = [(page.name, b.reason) for page in PAGES for b in blocks(page) if b.reason]
    assert len(marked) == 14, marked


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / name for name in BESIDES)],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_block_says_its_language_and_every_link_leads_somewhere(page):
    assert {block.language for block in blocks(page)} <= {"python", "sh", "toml", "text"}
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, link


def test_the_api_pages_have_every_public_name():
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    documented = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    assert set(mixup_inference.__all__) <= documented


def dotted(text):
    """Names of ours in backticks, and what API pages document."""
    return re.findall(r"(?:^::: |`)(mixup_inference\.[\w.]+)(?:`|$)", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_of_ours_exist(page):
    for name in dotted(page.read_text(encoding="utf-8")):
        assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_of_ours_exist(page):
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "src" / "mixup_inference" / name).exists(), name


@pytest.mark.parametrize(
    ("heading", "folder", "registry"),
    [
        ("Training methods", "training", OBJECTIVES),
        ("Defences", "defenses", DEFENSES),
        ("Detection scores", "detection", SCORES),
        ("Attacks", "attacks", ATTACKS),
    ],
)
def test_every_system_stands_on_its_page(heading, folder, registry):
    text = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in re.findall(r"^\| `.*$", section, re.MULTILINE)]
    assert all(len(row) == 5 for row in rows)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(named) == sorted(registry)
    source = ROOT / "src" / "mixup_inference"
    for place in (place for row in rows for place in re.findall(r"`([^`]+)`", row[3])):
        assert (source / folder / place).exists() or (source / place).exists(), place
