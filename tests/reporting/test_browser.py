"""The report in a real browser: no errors, nothing wider than the screen, sorting."""

from __future__ import annotations

import shutil

import pytest

from mixup_inference.reporting import write_comparison

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def paths(whole, results, page, tmp_path):
    report = tmp_path / "report.html"
    report.write_text(page, encoding="utf-8")
    return [report, write_comparison([whole, results], tmp_path / "comparison.html")]


def opened(browser, path, **options):
    page = browser.new_page(**options)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.complaints.append(request.url)
            if request.url.startswith("http") else None)  # fmt: skip
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_complains_and_nothing_overflows(browser, paths, width, scheme):
    for path in paths:
        size = {"width": width, "height": 800}
        page = opened(browser, path, viewport=size, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != (
            "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")
        assert page.complaints == []
        page.close()


def test_headings_sort_by_mouse_and_by_keyboard(browser, paths):
    page = opened(browser, paths[0], viewport={"width": 1280, "height": 800})

    def column(number):
        cells = page.locator(f"#table tbody tr td:nth-child({number})")
        return [float(cell.get_attribute("data-value")) for cell in cells.all()]

    assert column(3) == [0.0, 0.45]
    heading = page.locator("#table th[data-column='2']")
    heading.locator("button").click()
    assert column(3) == [0.45, 0.0]
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(3) == [0.0, 0.45]
    assert heading.get_attribute("aria-sort") == "ascending"
    first = page.locator("#table th[data-column='1'] button")
    first.click()
    assert column(2) == [0.95, 0.9]
    assert heading.get_attribute("aria-sort") is None
    first.click()
    assert column(2) == [0.9, 0.95]
    first.click()
    assert column(2) == [0.95, 0.9]  # the table's own order again
    assert page.locator("#table [aria-sort]").count() == 0
    page.close()


def test_missing_cells_sort_last(browser, full, results, tmp_path):
    other = results | {"columns": ["clean"]}
    other["rows"] = [{**r, "cells": {"clean": r["cells"]["clean"]}} for r in results["rows"]]
    page = opened(browser, write_comparison([other, full], tmp_path / "comparison.html"))
    for _ in ("descending", "ascending"):
        page.locator("#table th[data-column='2'] button").click()
        values = [
            cell.get_attribute("data-value")
            for cell in page.locator("#table tbody tr td:nth-child(3)").all()
        ]
        assert values[2:] == [None, None]
        assert None not in values[:2]
    page.close()
