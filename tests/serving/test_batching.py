from __future__ import annotations

import asyncio
import threading
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixup_inference.guard import Answer
from mixup_inference.serving.batching import Batcher
from mixup_inference.serving.limits import Limits, Refusal

#: Seconds that nothing here may take, and milliseconds that nobody waits.
PATIENCE, LONG = 60, 1e7


class Engine:
    """Answers with the sum of an image plus its seed; fails on images that are below 0."""

    def __init__(self):
        self.batches = []
        self.open = threading.Event()
        self.open.set()

    def __call__(self, images, seeds):
        x = torch.cat(list(images))
        self.batches.append(x.flatten(1).sum(1).tolist())
        assert self.open.wait(PATIENCE)
        if (x < 0).any():
            raise ValueError("below 0")
        label = x.flatten(1).sum(1) + seeds
        return Answer(label, label[:, None], label, label, label > 0, label)


def image(*values):
    return torch.tensor([float(value) for value in values])[:, None, None, None]


def seeds(count):
    return torch.zeros(count, dtype=torch.int64)


def play(scene, engine=None, **limits):
    """Run a coroutine with a batcher around a fake engine."""
    engine = engine or Engine()

    async def whole():
        batcher = Batcher(engine, Limits(**{"max_wait_ms": 1.0} | limits))
        try:
            async with asyncio.timeout(PATIENCE):
                return await scene(batcher, engine)
        finally:
            engine.open.set()
            await batcher.close()

    return asyncio.run(whole())


async def settled(batcher, *, waiting, begun):
    """Wait until so many images wait, and so many batches have begun."""
    while (batcher.rows, len(batcher._predict.batches)) != (waiting, begun):
        await asyncio.sleep(0.001)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    cap=st.integers(1, 10),
    wait=st.sampled_from([0.0, 1.0]),
)
def test_everybody_gets_their_own_answer_and_no_batch_is_too_large(sizes, cap, wait):
    async def scene(batcher, engine):
        requests = [image(*range(10 * n, 10 * n + size)) for n, size in enumerate(sizes)]
        own = [torch.arange(size) * 1000 for size in sizes]
        calls = (batcher.submit(*pair) for pair in zip(requests, own, strict=True))
        answers = await asyncio.gather(*calls)
        for request, some, answer in zip(requests, own, answers, strict=True):
            assert torch.equal(answer.label, request.flatten() + some)
        assert max(map(len, engine.batches)) <= cap
        assert list(chain(*engine.batches)) == torch.cat(requests).flatten().tolist()  # in order
        assert batcher.rows == 0

    play(scene, max_batch=cap, max_wait_ms=wait)


def test_requests_share_a_batch_if_they_come_within_the_wait():
    async def scene(batcher, engine):
        first = asyncio.create_task(batcher.submit(image(1), seeds(1)))
        await asyncio.sleep(0.02)
        assert engine.batches == []  # it waits for company
        await asyncio.gather(first, batcher.submit(image(2), seeds(1)))
        assert engine.batches == [[1, 2]]

    play(scene, max_batch=2, max_wait_ms=LONG)


def test_nobody_waits_for_company_longer_than_said():
    async def scene(batcher, engine):
        await batcher.submit(image(1), seeds(1))
        assert engine.batches == [[1]]

    play(scene, max_batch=100, max_wait_ms=20)


def test_a_failing_request_fails_alone():
    async def scene(batcher, engine):
        calls = (batcher.submit(image(value), seeds(1)) for value in (1, -2, 3))
        one, bad, three = await asyncio.gather(*calls, return_exceptions=True)
        assert (float(one.label), float(three.label)) == (1, 3)
        assert isinstance(bad, ValueError)
        assert engine.batches == [[1, -2, 3], [1], [-2], [3]]
        assert float((await batcher.submit(image(4), seeds(1))).label) == 4

    play(scene, max_batch=3)


def test_who_has_gone_leaves_the_queue():
    async def scene(batcher, engine):
        engine.open.clear()
        first = asyncio.create_task(batcher.submit(image(1), seeds(1)))
        await settled(batcher, waiting=0, begun=1)
        gone = asyncio.create_task(batcher.submit(image(2, 2, 2), seeds(3)))
        stays = asyncio.create_task(batcher.submit(image(3), seeds(1)))
        await settled(batcher, waiting=4, begun=1)
        gone.cancel()
        await settled(batcher, waiting=1, begun=1)
        engine.open.set()
        assert float((await first).label) == 1
        assert float((await stays).label) == 3
        assert engine.batches == [[1], [3]]

    play(scene, max_batch=2)


def test_who_goes_while_it_is_computed_harms_nobody():
    async def scene(batcher, engine):
        engine.open.clear()
        calls = [asyncio.create_task(batcher.submit(image(n), seeds(1))) for n in (1, 2)]
        await settled(batcher, waiting=0, begun=1)
        calls[0].cancel()
        engine.open.set()
        assert float((await calls[1]).label) == 2
        assert calls[0].cancelled()

    play(scene, max_batch=2, max_wait_ms=LONG)


def test_a_full_queue_refuses_all_of_a_request():
    async def scene(batcher, engine):
        engine.open.clear()
        first = asyncio.create_task(batcher.submit(image(1), seeds(1)))
        await settled(batcher, waiting=0, begun=1)
        second = asyncio.create_task(batcher.submit(image(*range(6)), seeds(6)))
        await settled(batcher, waiting=6, begun=1)
        with pytest.raises(Refusal) as caught:
            await batcher.submit(image(1, 2, 3, 4, 5), seeds(5))
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert batcher.rows == 6
        third = asyncio.create_task(batcher.submit(image(7, 8, 9, 10), seeds(4)))
        engine.open.set()
        await asyncio.gather(first, second, third)

    play(scene, max_batch=1, max_queue=10)


def test_closing_answers_what_was_accepted_and_nothing_more():
    async def scene(batcher, engine):
        engine.open.clear()
        calls = [asyncio.create_task(batcher.submit(image(n), seeds(1))) for n in range(5)]
        await settled(batcher, waiting=3, begun=1)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await batcher.submit(image(9), seeds(1))
        assert caught.value.status == 503
        engine.open.set()
        await closing
        assert [float(call.result().label) for call in calls] == [0, 1, 2, 3, 4]
        assert sum(map(len, engine.batches)) == 5

    play(scene, max_batch=2, max_wait_ms=LONG)


def test_in_a_hurry_nothing_waits_but_all_is_accepted():
    async def scene(batcher, engine):
        first = asyncio.create_task(batcher.submit(image(1), seeds(1)))
        await settled(batcher, waiting=1, begun=0)
        batcher.hurry()
        assert float((await first).label) == 1
        assert float((await batcher.submit(image(2), seeds(1))).label) == 2

    play(scene, max_batch=100, max_wait_ms=LONG)


def test_what_waits_for_company_is_answered_at_once_when_closing():
    async def scene(batcher, engine):
        call = asyncio.create_task(batcher.submit(image(3), seeds(1)))
        await settled(batcher, waiting=1, begun=0)
        await batcher.close()
        assert float((await call).label) == 3

    play(scene, max_batch=100, max_wait_ms=LONG)
