"""The documentation: its code blocks run, its links lead somewhere, its API pages are complete.

The blocks of a page run in order: Python in one namespace, shell (``sh``) in one folder. A block
with ``title="name"`` is written to that file instead. One that cannot run here stands below a
comment ``<!-- not run: reason -->``, and is counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import mixup_inference

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


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run shell code in an empty folder, where `mixup-inference` is the one that is tested."""
    script = tmp_path / "bin" / "mixup-inference"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mixup_inference.cli "$@"\n')
    script.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    def run(code):
        command = [shutil.which("bash"), "-euo", "pipefail", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"

    return run


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, shell):
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason:
            continue
        if block.title:
            Path(block.title).write_text(block.code)
        elif block.language == "python":
            exec(compile(block.code, f"{page.name}", "exec"), namespace)  # noqa: S102
        elif block.language == "sh":
            shell(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)


def test_what_cannot_run_is_counted():
    """Whoever marks another block changes this number, and thinks twice."""
    marked = [(page.name, b.reason) for page in PAGES for b in blocks(page) if b.reason]
    assert len(marked) == 11, marked


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
