"""What surrounds every request: the token, the log line, the counters. Never its content."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from mixup_inference.serving.limits import Token
from mixup_inference.serving.metrics import Metrics
from mixup_inference.serving.service import log_fault

LOG = logging.getLogger("mixup_inference.serving")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

#: Probes carry no token, and tell nothing.
OPEN = frozenset({"/v2/health/live", "/v2/health/ready"})


class Authorized:
    """Refuses requests without the token, before anything of them is read."""

    def __init__(self, app: App, token: Token) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        given = Headers(scope=scope).get("authorization") if scope["type"] == "http" else None
        if scope["type"] != "http" or scope["path"] in OPEN or self.token.fits(given):
            await self.app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"}
        error = {"error": "this server wants its token: the header Authorization: Bearer ..."}
        await JSONResponse(error, 401, headers)(scope, receive, send)


class Counted:
    """Counts and times requests, and writes a line for each: route, status, time."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, begun = time.perf_counter(), 500, False

        async def watched(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            log_fault(error)
            if not begun:
                await JSONResponse({"error": "the server failed on this request."}, 500)(
                    scope, receive, send
                )
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")  # not what the client wrote
            self.metrics.in_flight.dec()
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.latency.labels(route).observe(seconds)
            LOG.info("%s %d %.0f ms", route, status, 1000 * seconds)
