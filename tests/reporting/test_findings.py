"""The sentences follow from the numbers, flattering or not."""

from __future__ import annotations

from mixup_inference.reporting.claims import claims
from mixup_inference.reporting.summary import best, summary
from reporting.made_up import BARE, HELPS, figures, results, row


def test_a_defence_that_helps():
    text = " ".join(summary(results(BARE, HELPS)))
    assert "mixup + mi-ol helps: untargeted PGD-10 40.0% instead of 1.0%" in text
    assert "on clean images -2.0 points [" in text
    assert "31 forward passes an image" in text
    assert "does not know of the defence" in text


def test_a_defence_that_does_harm():
    harms = row("mixup", "mi-ol", 300, 5, 20)
    bare = row("mixup", "none", 490, 300, 400)
    text = " ".join(summary(results(bare, harms)))
    assert "mixup + mi-ol does harm" in text
    assert "helps" not in text


def test_a_defence_that_makes_no_difference():
    same = row("mixup", "mi-ol", 489, 8, 25)
    text = " ".join(summary(results(BARE, same)))
    assert "No measurable difference under attack: mixup + mi-ol." in text


def test_a_defence_that_helps_against_one_attack_only():
    mixed = row("mixup", "mi-ol", 489, 200, 20)
    assert "mixup + mi-ol depends on the attack" in " ".join(summary(results(BARE, mixed)))


def test_only_what_is_significantly_best_is_marked():
    rows = [BARE, HELPS, row("mixup", "gaussian", 480, 190, 20), row("erm", "none", 499, 1, 1)]
    marked = best(results(*rows))
    assert marked == {"clean": set(), "untargeted PGD-10": set(), "targeted PGD-10": {1}}


def test_linearity_in_words():
    for value, words in ((0.05, "close to linear"), (0.15, "only roughly"), (0.4, "far from")):
        assert words in " ".join(summary(results(BARE, figures=figures(mixup=value))))


def test_without_attack_there_is_little_to_say():
    document = results(BARE, HELPS)
    del document["spec"]["attack"]
    document["columns"] = ["clean"]
    text = summary(document)
    assert text[0] == "Tested on 500 test points of digits, without any attack."
    assert "on clean images -2.0 points" in text[1]
    assert claims(document) == []
