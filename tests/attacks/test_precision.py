"""Attacks that compute in bfloat16 are as strong, and are judged by the defence as it is."""

from __future__ import annotations

import pytest
import torch

from mixup_inference import (
    CombinedInference,
    InputError,
    MixupDetector,
    MixupInference,
    RobustAccuracy,
    evaluate,
    pgd,
)
from mixup_inference.attacks import ATTACKS, detector_aware, judge, run_attack
from mixup_inference.models.folding import Folded

EPS = 0.15


@pytest.fixture
def seen(monkeypatch):
    """For every call of a folded copy, whether it rounds."""
    rounds = []
    original = Folded.forward

    def forward(self, x):
        rounds.append(self.rounds)
        return original(self, x)

    monkeypatch.setattr(Folded, "forward", forward)
    return rounds


def test_pgd_is_as_strong(trained, parts, seen):
    x, y = parts["test"].pixels, parts["test"].labels
    settings = {"eps": EPS, "step": EPS / 4, "steps": 20}
    exact = pgd(trained, x, y, **settings)
    assert seen
    assert not any(seen)
    seen.clear()
    rounded = pgd(trained, x, y, **settings, precision="bf16-mixed")
    assert seen
    assert all(seen)
    assert rounded.dtype == x.dtype
    assert float((rounded - x).abs().max()) <= EPS + 1e-6
    assert not torch.equal(exact, rounded)
    counts = [evaluate(trained, found, y).correct for found in (exact, rounded)]
    assert abs(counts[0] - counts[1]) <= 4  # of 200
    assert max(counts) < 40


@pytest.mark.parametrize("name", ["eot-pgd", "apgd", "square", "paper-adaptive", "oblivious",
                                  "official-adaptive", "detector-aware"])  # fmt: skip
def test_attacks_round_and_the_judge_does_not(trained, pool, parts, seen, name):
    assert name in ATTACKS
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    defense = MixupInference(trained, pool, draws=4)
    if name == "detector-aware":
        defense = CombinedInference(trained, pool, draws=4, threshold=0.1)
    small = {"steps": 10, "draws": 3, "samples": 3, "queries": 20}
    settings = {key: value for key, value in small.items() if key in ATTACKS[name].defaults}
    options = {"eps": EPS, "repeats": 3, "index": torch.arange(60)}
    exact, rounded = (
        run_attack(name, defense, x, y, settings=settings, precision=precision, **options)
        for precision in ("32-true", "bf16-mixed")
    )
    assert True in seen
    assert exact.backward == rounded.backward
    if name != "detector-aware":  # which draws more where it detects
        assert exact.forward == rounded.forward
    assert not torch.equal(exact.examples, rounded.examples)
    seen.clear()
    verdicts = judge(defense, rounded.examples, y, repeats=3, index=options["index"])
    assert not seen  # the defence's own network, not a copy
    assert torch.equal(rounded.fooled, verdicts)
    one, other = (RobustAccuracy(found.fooled).value for found in (exact, rounded))
    assert abs(one - other) < 0.1


def test_a_detector_is_attacked_through_a_copy(trained, pool, parts, seen):
    x, y = parts["test"].pixels[:60], parts["test"].labels[:60]
    detector = MixupDetector(trained, pool, draws=4, threshold=0.1)
    for precision in ("32-true", "bf16-mixed"):
        seen.clear()
        detector_aware(detector, x, y, steps=5, draws=3, eps=EPS, precision=precision)
        assert set(seen) == {precision == "bf16-mixed"}


def test_an_unknown_precision_is_refused(trained, parts):
    x, y = parts["test"].pixels[:4], parts["test"].labels[:4]
    with pytest.raises(InputError, match="did you mean 'bf16-mixed'"):
        pgd(trained, x, y, precision="bf16-mixd")
