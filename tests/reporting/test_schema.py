"""Which documents are read as the results of a run, and how others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixup_inference import InputError
from mixup_inference.reporting import SCHEMA, check_results
from reporting.synthetic_adaptive import adaptive_results

KEPT = sorted(Path(__file__).parents[2].glob("results/*/results.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_results_of_earlier_versions_are_read(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    assert check_results(document, "it") is document


def test_everything_that_a_run_can_write_is_in_the_schema(full):
    check_results(full | {"adaptive": adaptive_results(), "engines": {"mixup": "eager"}}, "it")


@pytest.mark.parametrize("foreign", [None, [], 3, {}, {"schema": SCHEMA + 1}, {"schema": "1"}])
def test_a_foreign_document_is_refused(foreign):
    with pytest.raises(InputError, match=r"it is not the results\.json of a run by this version"):
        check_results(foreign, "it")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("columns",), "columns: Field required"),
        (("rows", 1, "cells", "clean", "low"), "rows.1.cells.clean.low: Field required"),
        (("figures", "mixup", "theory", 0, "counts"), "theory.0.counts: Field required"),
        (("adaptive", "rows", 2, "checks", 0, "passed"), "checks.0.passed: Field required"),
    ],
)
def test_a_broken_document_is_refused_by_the_name_of_what_is_wrong(full, place, words):
    full["adaptive"] = adaptive_results()
    node = full
    for key in place[:-1]:
        node = node[key]
    del node[place[-1]]
    with pytest.raises(InputError, match=words):
        check_results(full, "it")
