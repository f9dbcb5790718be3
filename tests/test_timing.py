"""Stages of time: nested without counting twice, and F's images wherever it is called."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from mixup_inference import CombinedInference, MixupInference, eot_pgd, pgd
from mixup_inference.attacks.query import freeze
from mixup_inference.models.call import count_passes, logits_of
from mixup_inference.utils.profiling import Stage, Stopwatch, timed


class Clock:
    """Stands still unless it is told to go on."""

    now = 100.0

    def __call__(self):
        return self.now


def spent(watch):
    return {stage: seconds for stage, seconds in watch.read().items() if seconds}


def test_time_belongs_to_the_innermost_stage_and_adds_up():
    clock = Clock()

    @timed(Stage.DRAWING)
    def draw(again):
        clock.now += 1
        if again:
            draw(again=False)
        clock.now += 2

    with Stopwatch(clock) as watch:
        clock.now += 4
        with timed(Stage.ATTACKING):
            clock.now += 8
            draw(again=True)
            with timed(Stage.FORWARD, images=5), suppress(ValueError):
                clock.now += 16
                with timed(Stage.MIXING):
                    clock.now += 32
                    raise ValueError
            clock.now += 64
        clock.now += 128
    assert spent(watch) == {
        Stage.DRAWING: 6, Stage.FORWARD: 16, Stage.MIXING: 32, Stage.ATTACKING: 72, Stage.REST: 132,
    }  # fmt: skip
    assert sum(watch.read().values()) == clock.now - Clock.now
    assert watch.images == 5


def test_an_open_stage_is_counted_until_now():
    clock = Clock()
    with Stopwatch(clock) as watch, timed(Stage.LOADING):
        clock.now += 3
        assert spent(watch) == {Stage.LOADING: 3}


def test_nothing_is_timed_when_no_stopwatch_runs():
    clock = Clock()
    with Stopwatch(clock) as watch:
        pass
    with timed(Stage.LOADING):
        clock.now += 1
    assert spent(watch) == {Stage.REST: 1}


def test_the_gpu_is_waited_for_before_the_clock_is_read():
    clock = Clock()
    with Stopwatch(clock) as watch:
        watch.wait = lambda: setattr(clock, "now", clock.now + 1)
        with timed(Stage.FORWARD):
            pass
    assert spent(watch) == {Stage.FORWARD: 1, Stage.REST: 2}


@pytest.mark.parametrize("engine", ["eager", "folded"])
@pytest.mark.parametrize("chunk", [None, 10])
def test_mixup_inference_passes_n_plus_one_images(trained, pool, parts, engine, chunk):
    x = parts["test"].pixels[:12]
    defended = MixupInference(trained, pool, draws=7, engine=engine, chunk=chunk)
    with torch.no_grad():
        defended(x)  # compares the engine with the model, once
        with Stopwatch() as watch:
            defended(x)
    assert watch.images == 8 * 12
    stages = {Stage.FORWARD, Stage.DRAWING, Stage.MIXING, Stage.AVERAGING}
    assert spent(watch).keys() == stages | {Stage.REST}


def test_images_of_a_defence_are_not_those_of_f(trained, pool, parts):
    x = parts["test"].pixels[:5]
    with torch.no_grad(), Stopwatch() as watch:
        logits_of(freeze(MixupInference(trained, pool, draws=3)), x)
    assert watch.images == 4 * 5


def test_images_are_those_that_pass(trained, pool, parts):
    x, y = parts["test"].pixels[:10], parts["test"].labels[:10]
    for defense in (
        MixupInference(trained, pool, draws=9, stop="exact", control_variate=True),
        MixupInference(trained, pool, draws=9, chunk=4),  # computed again in the backward pass
        CombinedInference(trained, pool, lam_detect=0.5, lam_defend=0.5, threshold=0.1, draws=4),
    ):
        with count_passes(trained) as passes, Stopwatch() as watch:
            defense(x)
            eot_pgd(defense, x, y, steps=2, draws=5)
        assert watch.images == passes.forward
        assert watch.read()[Stage.BACKWARD] > 0
        assert passes.backward > 0


def test_attacks_take_the_same_way_and_find_the_same(trained, pool, parts):
    """A copy of F is folded with and without a stopwatch, and every bit is the same."""
    x, y = parts["test"].pixels[:64], parts["test"].labels[:64]
    defended = MixupInference(trained, pool, draws=3)
    with Stopwatch() as watch:
        timed_ones = pgd(trained, x, y), eot_pgd(defended, x, y, steps=3, draws=4).examples
    assert watch.read()[Stage.COPYING] > 0
    plain = pgd(trained, x, y), eot_pgd(defended, x, y, steps=3, draws=4).examples
    for a, b in zip(timed_ones, plain, strict=True):
        assert torch.equal(a, b)
