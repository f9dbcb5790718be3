"""Run the server: a socket, signals, uvicorn."""

from __future__ import annotations

import logging
import signal
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mixup_inference.errors import InputError
from mixup_inference.guard import Guard
from mixup_inference.serving.app import make_app
from mixup_inference.serving.limits import Limits
from mixup_inference.serving.service import Service

LOG = logging.getLogger("mixup_inference.serving")


class PatientProtocol(HttpToolsProtocol):
    """HTTP that closes connections whose header does not come in time."""

    seconds = 10.0
    _waiting: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """A client connects: the first header is awaited."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """A header begins."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """A header is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """Uvicorn that ends well on SIGTERM: accepted requests are answered, the exit code is 0."""

    def __init__(self, config: uvicorn.Config, hurry: Callable[[], None]) -> None:
        super().__init__(config)
        self._hurry = hurry

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down; uvicorn would raise SIGTERM again at the end."""
        if sig == signal.SIGTERM:
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer what was accepted."""
        LOG.info("Shutting down.")
        self._hurry()
        await super().shutdown(sockets)


def make_server(
    load: Callable[[], Guard], name: str, limits: Limits, token: str | None = None
) -> tuple[Server, Service]:
    """A server that is not bound yet, and its service."""
    service = Service(load, name, limits, failed=lambda: setattr(server, "should_exit", True))
    config = uvicorn.Config(
        make_app(service, token),
        http=type("Protocol", (PatientProtocol,), {"seconds": limits.timeout}),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would write addresses as clients send them
        server_header=False,
        limit_concurrency=limits.max_connections,
        backlog=limits.max_connections,
        timeout_graceful_shutdown=max(1, round(limits.timeout)),
    )
    server = Server(config, service.hurry)
    return server, service


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; InputError if that address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error}.") from None


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    name: str = "guard",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    token: str | None = None,
    say: Callable[[str], None] = LOG.info,
) -> None:
    """Serve a guard's folder until SIGTERM or Ctrl-C."""
    bound = listen(host, port)
    server, service = make_server(lambda: Guard.load(folder), name, limits, token)
    place = f"[{host}]" if ":" in host else host
    say(
        f"Serving {folder} on http://{place}:{bound.getsockname()[1]}; the page /docs describes it."
    )
    server.run([bound])
    if service.problem is not None:
        raise service.problem
