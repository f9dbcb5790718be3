"""The guard that is served: loading, checks of requests, seeds, time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from traceback import format_tb

from torch import Tensor

from mixup_inference.errors import InputError
from mixup_inference.guard import Answer, Guard
from mixup_inference.guard.guard import fresh_seeds
from mixup_inference.serving.batching import Backend, Observe, local
from mixup_inference.serving.limits import Limits, Refusal
from mixup_inference.serving.metrics import Metrics
from mixup_inference.validation import check_images

LOG = logging.getLogger("mixup_inference.serving")

NOTE = (
    "An attack that knows the guard evades it: is_adversarial = false does not mean that the image "
    "is clean."
)


def log_fault(error: Exception) -> None:
    """Log where something failed, without the error's text, which may tell of a request."""
    frames = "".join(format_tb(error.__traceback__))
    LOG.error("%s\n%s", type(error).__name__, frames)


class Service:
    """One guard, from loading to shutting down.

    Args:
        load: returns the guard; called in a thread, while requests are answered with 503.
        name: of the model, in addresses.
        limits: of requests.
        backend: makes what computes the answers, once the guard has loaded.
        failed: called when the guard cannot be loaded; ``problem`` says why.
    """

    def __init__(
        self,
        load: Callable[[], Guard],
        name: str = "guard",
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        *,
        backend: Callable[[Guard, Limits, Observe], Backend] = local,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.limits = name, limits
        self.metrics = Metrics(self)
        self.problem: Exception | None = None
        self._load, self._make_backend, self._failed = load, backend, failed
        self._guard: Guard | None = None
        self._backend: Backend | None = None
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to load."""
        self._loading = asyncio.create_task(self._start())

    async def _start(self) -> None:
        try:
            guard = await asyncio.to_thread(self._load)
            await asyncio.to_thread(guard.predict, guard.pool.images[:2])  # makes the engine
        except Exception as error:
            self.problem = error
            self._failed()
            return
        self._guard = guard
        self._backend = self._make_backend(guard, self.limits, self.metrics.observe)
        LOG.info("The guard is ready.")

    def hurry(self) -> None:
        """The server shuts down: let nothing wait for company any more."""
        if self._backend is not None:
            self._backend.hurry()

    async def close(self) -> None:
        """Answer what was accepted."""
        if self._loading is not None:
            self._loading.cancel()
        if self._backend is not None:
            await self._backend.close()

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return self._backend is not None

    @property
    def waiting(self) -> int:
        """How many images wait."""
        return 0 if self._backend is None else self._backend.rows

    @property
    def guard(self) -> Guard:
        """The guard; Refusal (503) while it loads."""
        if self._guard is None:
            raise Refusal(503, "the guard is loading; try again soon.", {"Retry-After": "2"})
        return self._guard

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of its images."""
        channels, height, width = self.guard.pool.images.shape[1:]
        return channels, height, width

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.guard.class_names

    async def answer(self, images: Tensor, seeds: Tensor | None = None) -> Answer:
        """Check images and seeds of one request, and answer; or a Refusal.

        Whatever could fail for the request's fault is checked here, before it shares a batch.
        """
        self._check(images, seeds)
        seeds = fresh_seeds(len(images)) if seeds is None else seeds
        assert self._backend is not None
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await self._backend.submit(images, seeds)
        except TimeoutError:
            sentence = f"there was no answer within {self.limits.timeout:g} seconds."
            raise Refusal(503, sentence, {"Retry-After": "5"}) from None
        except Refusal:
            raise
        except Exception as error:
            log_fault(error)
            raise Refusal(500, "the guard failed on this request.") from None

    def _check(self, images: Tensor, seeds: Tensor | None) -> None:
        shape, limits = self.shape, self.limits
        if images.ndim != 4 or tuple(images.shape[1:]) != shape:
            wanted = ", ".join(map(str, shape))
            raise Refusal(
                400, f"images must have shape [rows, {wanted}]; saw {list(images.shape)!s:.80}."
            )
        if not 0 < len(images) <= limits.max_queue:
            raise Refusal(
                400, f"a request must have 1 to {limits.max_queue} images; saw {len(images)}."
            )
        try:
            if images.is_floating_point():
                check_images(images, what="images")
        except InputError as error:
            raise Refusal(400, str(error)) from None
        if seeds is None:
            return
        if not limits.allow_seeds:
            raise Refusal(
                400, "this server takes new seeds for every request; it was not started to take "
                "those of clients.",
            )  # fmt: skip
        if seeds.shape != (len(images),):
            raise Refusal(
                400, f"seed must hold one number an image ({len(images)}); "
                f"saw shape {list(seeds.shape)!s:.80}.",
            )  # fmt: skip
