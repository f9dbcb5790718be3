from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.conftest import Columns
from mixup_inference import CombinedInference, InputError, Pool
from mixup_inference.guard import Guard, Settings
from mixup_inference.guard.guard import balanced

FIELDS = ("label", "probabilities", "undefended_label", "score", "is_adversarial", "draws")


def test_an_answer_is_that_of_mi_combined(guard, points):
    x = points[0][:50].float() / 255
    seeds = torch.arange(50) * 7919 - 10**15
    found = guard.predict(points[0][:50], seeds=seeds)
    reference = CombinedInference(
        Columns(), guard.pool, threshold=guard.calibration.threshold, draws=8
    )
    log_p = reference(x, index=seeds, stream="guard")
    assert torch.equal(found.label, log_p.argmax(1))
    assert torch.equal(found.undefended_label, Columns()(x).argmax(1))
    assert torch.equal(found.is_adversarial, found.score > guard.calibration.threshold)
    assert found.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    assert found.is_adversarial.any()
    unflagged = ~found.is_adversarial
    assert torch.equal(found.label[unflagged], found.undefended_label[unflagged])


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.integers(0, 99), min_size=1, max_size=12),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_an_image_with_its_seed_has_the_same_answer_in_any_batch(guard, points, rows, seed):
    x = points[0][rows]
    seeds = torch.tensor([(seed ^ row) for row in rows])
    together = guard.predict(x, seeds=seeds)
    for place in range(len(rows)):
        alone = guard.predict(x[place : place + 1], seeds=seeds[place : place + 1])
        for name in FIELDS:
            one, other = getattr(together, name)[place], getattr(alone, name)[0]
            assert torch.allclose(one.double(), other.double(), atol=1e-6)


def test_calls_without_seeds_draw_anew_and_leave_the_global_state_alone(guard, points):
    state = torch.random.get_rng_state()
    one, two = (guard.predict(points[0][:40]) for _ in range(2))
    assert not torch.equal(one.score, two.score)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_stopping_early_changes_no_decision(points, pool):
    common = {"draws": 20, "engine": "eager"}
    early, full = (
        Guard.fit(Columns(), pool, *points, stop=stop, **common) for stop in ("exact", None)
    )
    assert early.calibration == full.calibration
    seeds = torch.arange(200)
    one, two = (some.predict(points[0][:200], seeds=seeds) for some in (early, full))
    assert torch.equal(one.is_adversarial, two.is_adversarial)
    assert torch.equal(one.label, two.label)
    assert int(one.draws.sum()) < int(two.draws.sum())


def test_the_default_stops_sooner_and_says_what_that_changes(digits):
    guard, x, _ = digits
    assert guard.settings.stop == "likely"
    every = Guard(
        guard.model, guard.pool, guard.calibration, guard.settings.model_copy(update={"stop": None})
    )
    seeds = torch.arange(len(x))
    one, two = guard.predict(x, seeds=seeds), every.predict(x, seeds=seeds)
    same = int((one.is_adversarial == two.is_adversarial).sum())
    assert same >= 0.97 * len(x)
    assert float(one.draws.double().mean()) < 0.8 * float(two.draws.double().mean())
    found = guard.stopping
    assert found.points == 400
    assert 0.97 * 400 <= found.same <= 400
    assert abs(found.draws - float(one.draws.double().mean())) < 2  # on other clean images
    assert every.stopping is None


def test_false_alarms_of_new_images_fit(guard):
    from guard.conftest import images_of

    labels = torch.arange(1000) % 10
    assert guard.check(images_of(labels, seed=5)).fits
    assert not guard.check(torch.full((300, 1, 8, 10), 0.3) + torch.rand(300, 1, 8, 10) / 50).fits


def test_the_evaluation_shows_that_an_adaptive_attack_evades(digits):
    guard, x, y = digits
    found = guard.evaluate(x[:50], y[:50], eps=0.15, steps=30, draws=4)
    assert guard.evaluation is found
    assert found.oblivious.undefended < 0.3
    assert found.clean.undefended > 0.9
    assert found.adaptive.evaded > found.oblivious.evaded
    assert found.adaptive.flagged < found.oblivious.flagged
    for outcome in (found.clean, found.oblivious, found.adaptive):
        assert outcome.evaded <= 1 - outcome.undefended + 1e-9
        assert outcome.evaded <= 1 - outcome.flagged + 1e-9


def test_a_part_of_the_pool_has_as_many_images_of_each_class(pool, points):
    part = balanced(pool, 3)
    assert torch.bincount(part.labels).tolist() == [3] * 10
    whole = {image.numpy().tobytes() for image in pool.images}
    assert all(image.numpy().tobytes() in whole for image in part.images)
    guard = Guard.fit(Columns(), pool, *points, per_class=3, draws=4, engine="eager")
    assert len(guard.pool) == 30
    assert guard.pool_cost.images == 100
    assert 0 < guard.pool_cost.part <= guard.pool_cost.points == 400


def test_float_pools_are_kept_in_8_bits(pool, points):
    soft = Pool(pool.images.float() / 255, pool.labels)
    one, two = (Guard.fit(Columns(), p, *points, draws=4, engine="eager") for p in (pool, soft))
    assert two.pool.images.dtype == torch.uint8
    assert one.calibration == two.calibration


def test_settings_of_presets(pool, points, tmp_path):
    guard = Guard.fit(Columns(), pool, *points, preset="cifar10/mixup+mi-combined", draws=3)
    assert (guard.settings.lam_detect, guard.settings.lam_defend) == (0.5, 0.4)
    assert guard.calibration.threshold != 0.2  # calibrated, not the preset's
    with pytest.raises(InputError, match="preset of mi-combined"):
        Settings.of_preset("cifar10/mixup+mi-ol")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, p: Guard.fit(Columns(), g.pool, p[0][:5]), "give at least 19"),
        (lambda g, p: Guard.fit(Columns(), g.pool, *p, lam_detcet=0.5), "lam_detcet"),
        (lambda g, p: Guard.fit(Columns(), g.pool, *p, class_names=["a"]), "1 class names for 10"),
        (lambda g, p: g.predict(p[0][:2], seeds=torch.tensor([1])), "one integer per image"),
        (lambda g, p: g.predict(torch.rand(2, 1, 9, 9)), "must be the same to be mixed"),
        (lambda g, p: g.predict(torch.rand(2, 1, 8, 10) * 255), "Divide by 255"),
    ],
)
def test_mistakes_are_said_in_words(guard, points, call, words):
    with pytest.raises(ValueError, match=words):
        call(guard, points)


def test_answers_are_named_arrays(guard, points):
    found = guard.predict(points[0][:3])
    assert tuple(field.name for field in dataclasses.fields(found)) == FIELDS
    assert all(len(getattr(found, name)) == 3 for name in FIELDS)
