from __future__ import annotations

import csv
import io
import re

import pytest

from mixup_inference.evaluation import Accuracy
from mixup_inference.evaluation.results import cell_entry
from mixup_inference.reporting import html
from mixup_inference.reporting.tables import as_csv, markdown, with_margin

NASTY = "<script>alert(1)</script> & | co $x_{$ b"
COLUMNS = ["clean", "untargeted PGD-10", "targeted PGD-10"]


@pytest.fixture
def results():
    def row(title, group, *correct):
        cells = {
            c: cell_entry(Accuracy(n, 200, 31.0)) for c, n in zip(COLUMNS, correct, strict=True)
        }
        return {
            "title": title, "group": group, "model": "mixup", "defense": "mi-ol",
            "settings": {"lam": 0.5}, "passes_per_image": 31.0, "cells": cells,
        }  # fmt: skip

    return {
        "name": "t", "title": NASTY, "columns": COLUMNS, "seed": 0, "device": "cpu",
        "rows": [row("Plain", "a", 190, 0, 7), row(NASTY, "b", 180, 90, 200)],
        "models": {"mixup": {"epochs": 2, "final_loss": 1.0, "final_training_accuracy": 0.5}},
        "points": {"test": 200, "train": 10},
        "spec": {"draws": 30, "attack": {"norm": "linf", "eps": 0.1, "step": 0.02,
                                         "labels": "true"}},
        "versions": {"mixup-inference": "0"},
        "timing": {"finished": "now", "seconds": 1.0, "training_seconds": {"mixup": 3.0}},
    }  # fmt: skip


def test_markdown_has_every_number(results):
    lines = markdown(results).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert "95.0 [91.0, 97.3]" in table[2]
    assert "0.0 [0.0, 1.9]" in table[2]
    assert "100.0 [98.1, 100.0]" in table[3]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1  # the pipe is escaped


def test_csv_can_be_read_back(results):
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [row["method"] for row in rows] == ["Plain", NASTY]
    assert float(rows[1]["untargeted PGD-10"]) == 0.45
    assert float(rows[1]["clean low"]) < 0.9 < float(rows[1]["clean high"])


def test_margin_is_never_shorter_than_the_longer_arm():
    cell = cell_entry(Accuracy(0, 500))
    assert with_margin(cell) == "0.0 ±0.8"


def test_page_is_self_contained_and_escapes_what_it_is_given(results):
    page = html(results)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    for number in ("95.0", "45.0", "100.0"):
        assert number in page
    assert "<svg" in page
