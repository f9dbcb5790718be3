"""What a server accepts, and how it says no; importing this must not import torch."""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The bounds of a server, each there so that nobody can take all of it.

    Attributes:
        max_batch: images that the guard computes at once.
        max_wait_ms: how long an image waits for others to share its batch; with 0 a batch takes
            what has come while the one before was computed.
        max_queue: images that wait, of all requests together; also the most of one request.
        max_body: bytes of a request.
        max_pixels: of a picture.
        timeout: seconds for sending a request, again for its answer, and for shutting down.
        max_connections: open at once.
        allow_seeds: whether a request may name its seeds.
    """

    max_batch: int = 64
    max_wait_ms: float = 0.0
    max_queue: int = 1024
    max_body: int = 16_000_000
    max_pixels: int = 16_000_000
    timeout: float = 30.0
    max_connections: int = 1000
    allow_seeds: bool = False

    @property
    def max_bodies(self) -> int:
        """Bytes of all requests that are being read or answered."""
        return 16 * self.max_body


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 (an answer, not a fault)
    """A request that gets no answer but a status and a sentence."""

    status: int
    sentence: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def busy(
        cls, seconds: float, sentence: str = "the server is full; try again later."
    ) -> Refusal:
        """Too many requests for now: 429, with the time to wait."""
        wait = str(min(60, max(1, math.ceil(seconds))))
        return cls(429, sentence, {"Retry-After": wait})


class Token:
    """The bearer token that requests must carry, if there is one.

    >>> Token("secret").fits("Bearer secret"), Token("secret").fits("Bearer other")
    (True, False)
    >>> Token(None).fits(None)
    True
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def fits(self, header: str | None) -> bool:
        """Whether the header ``Authorization`` carries it; takes as long for any wrong one."""
        if self._token is None:
            return True
        scheme, _, given = (header or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token)
        return same and scheme.lower() == "bearer"
