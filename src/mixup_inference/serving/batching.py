"""Put the images of many requests together into batches, and share the answers out again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Protocol

import torch
from torch import Tensor

from mixup_inference.guard import Answer, Guard
from mixup_inference.models.call import dtype_of
from mixup_inference.serving.limits import Limits, Refusal
from mixup_inference.validation import as_pixels

#: Answers for the images of some jobs, in order, one seed an image.
Predict = Callable[[Sequence[Tensor], Tensor], Answer]
#: Told of each batch: the answer, and the seconds that it took.
Observe = Callable[[Answer, float], None]


class Backend(Protocol):
    """Whatever computes answers behind the front: this process, or others."""

    rows: int  # images that wait

    async def submit(self, images: Tensor, seeds: Tensor) -> Answer:
        """Answer for checked images, NCHW, with one int64 seed each; Refusal if it is full."""

    def hurry(self) -> None:
        """The end is near: let nothing wait for company any more."""

    async def close(self) -> None:
        """Answer what was accepted, and accept nothing more."""


@dataclass(eq=False)
class Job:
    """Images of one request that are computed together."""

    images: Tensor
    seeds: Tensor
    answer: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)

    def __len__(self) -> int:
        return len(self.images)


class Batcher:
    """A backend in this process: a bounded queue, and one thread that computes.

    Images come in by ``submit`` and are computed in the order in which they came, at most
    ``max_batch`` at once. A batch that is not full starts when its oldest image has waited
    ``max_wait_ms``. If a batch fails, each of its requests is tried alone, so that only the one at
    fault fails. A request whose caller has gone (cancelled, timed out) leaves the queue.

    Args:
        predict: computes a batch; called in the thread.
        limits: the bounds.
        observe: told of each batch.
    """

    def __init__(
        self, predict: Predict, limits: Limits, observe: Observe = lambda *_: None
    ) -> None:
        self.limits = limits
        self.rows = 0  # images that wait
        self._predict, self._observe = predict, observe
        self._jobs: deque[Job] = deque()
        self._changed = asyncio.Event()
        self._closing = self._hurried = False
        self._seconds_per_row = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._task = asyncio.create_task(self._run())

    async def submit(self, images: Tensor, seeds: Tensor) -> Answer:
        """Answer for images; Refusal (429) if so many more do not fit into the queue."""
        if self._closing:
            raise Refusal(503, "the server is shutting down.")
        if self.rows + len(images) > self.limits.max_queue:
            raise Refusal.busy(self.rows * self._seconds_per_row)
        loop, cap = asyncio.get_running_loop(), self.limits.max_batch
        parts = zip(images.split(cap), seeds.split(cap), strict=True)
        jobs = [Job(some, own, loop.create_future()) for some, own in parts]
        self._jobs.extend(jobs)
        self.rows += len(images)
        self._changed.set()
        try:
            return joined(await asyncio.gather(*(job.answer for job in jobs)))
        finally:
            self._leave(jobs)

    async def close(self) -> None:
        """Answer what was accepted, and accept nothing more."""
        self._closing = True
        self.hurry()
        await self._task
        self._thread.shutdown(wait=False)

    def hurry(self) -> None:
        """The end is near: let nothing wait for company any more."""
        self._hurried = True
        self._changed.set()

    def _leave(self, jobs: list[Job]) -> None:
        """Take the jobs that were not computed out of the queue."""
        for job in jobs:
            if not job.answer.done():
                job.answer.cancel()
            if job.answer.cancelled() and job in self._jobs:
                self._jobs.remove(job)
                self.rows -= len(job)

    async def _run(self) -> None:
        while batch := await self._next_batch():
            await self._answer(batch)

    async def _next_batch(self) -> list[Job]:
        """The jobs to compute next; none when all is done and the server closes."""
        while True:
            if not self._jobs:
                if self._closing:
                    return []
                await self._change(None)
            elif self._hurried or self.rows >= self.limits.max_batch:
                return self._take()
            else:
                age = time.monotonic() - self._jobs[0].since
                if (left := self.limits.max_wait_ms / 1000 - age) <= 0:
                    return self._take()
                await self._change(left)

    async def _change(self, seconds: float | None) -> None:
        """Wait for a change of the queue, not longer than so many seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _take(self) -> list[Job]:
        """Take the oldest jobs, as many as fit into a batch."""
        batch: list[Job] = []
        room = self.limits.max_batch
        while self._jobs and len(self._jobs[0]) <= room:
            batch.append(self._jobs.popleft())
            room -= len(batch[-1])
        self.rows -= self.limits.max_batch - room
        return batch

    async def _answer(self, batch: list[Job]) -> None:
        """Compute some jobs, and hand each its part."""
        images, seeds = [job.images for job in batch], torch.cat([job.seeds for job in batch])
        start = time.perf_counter()
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._thread, self._predict, images, seeds)
        except Exception as error:
            if len(batch) > 1:
                for job in batch:
                    await self._answer([job])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        seconds = time.perf_counter() - start
        self._seconds_per_row = seconds / len(seeds)
        self._observe(answer, seconds)
        start_row = 0
        for job in batch:
            if not job.answer.done():
                job.answer.set_result(part(answer, start_row, start_row + len(job)))
            start_row += len(job)


def local(guard: Guard, limits: Limits, observe: Observe) -> Backend:
    """A backend that computes in this process."""
    dtype = dtype_of(guard.model)

    def predict(images: Sequence[Tensor], seeds: Tensor) -> Answer:
        return guard.predict(torch.cat([as_pixels(x, dtype) for x in images]), seeds=seeds)

    return Batcher(predict, limits, observe)


def part(answer: Answer, start: int, end: int) -> Answer:
    """Some rows of an answer."""
    return Answer(*(getattr(answer, f.name)[start:end] for f in fields(Answer)))


def joined(answers: Sequence[Answer]) -> Answer:
    """Answers one below the other."""
    if len(answers) == 1:
        return answers[0]
    return Answer(*(torch.cat([getattr(a, f.name) for a in answers]) for f in fields(Answer)))
