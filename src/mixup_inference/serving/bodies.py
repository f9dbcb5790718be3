"""Read the bodies of requests: bounded each, together, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from mixup_inference.serving.limits import Limits, Refusal

T = TypeVar("T")

#: Seconds in which the rest of a body that is too large may still come, unread, so that whoever
#: sends all of it before reading gets to read the answer.
LINGER = 1.0
CLOSE = {"Connection": "close"}


class Bodies:
    """The bodies that are in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0  # bytes

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, as long as it is needed; or a Refusal."""
        parts: list[bytes] = []
        try:
            yield await self._read(request, parts)
        finally:
            self.held -= sum(map(len, parts))

    async def _read(self, request: Request, parts: list[bytes]) -> bytes:
        """The body, whose parts are counted as long as they stand in the list."""
        most, size = self.limits.max_body, 0
        too_large = Refusal(413, f"the request is larger than {most:,} bytes.", CLOSE)
        length = request.headers.get("content-length", "0")
        try:
            async with asyncio.timeout(self.limits.timeout):
                if length.isdigit() and int(length) > most:
                    await _pass_over(request)
                    raise too_large
                async for part in request.stream():
                    parts.append(part)
                    self.held += len(part)
                    size += len(part)
                    if size > most:
                        await _pass_over(request)
                        raise too_large
                    if self.held > self.limits.max_bodies:
                        raise Refusal.busy(1)
        except TimeoutError:
            sentence = f"the request was not sent within {self.limits.timeout:g} seconds."
            raise Refusal(408, sentence, CLOSE) from None
        except ClientDisconnect:
            raise Refusal(400, "the client has gone.") from None
        return b"".join(parts)


async def _pass_over(request: Request) -> None:
    """Receive what is left of a body, not for long."""
    if "expect" in request.headers:  # it is not on its way yet
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while (message := await request.receive())["type"] != "http.disconnect":
                if not message.get("more_body"):
                    return


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work for a client, which is dropped when the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(400, "the client has gone.")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
