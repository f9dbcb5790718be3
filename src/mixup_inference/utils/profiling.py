"""Profiling: seconds by named stage. Stages may be nested, and nothing is counted twice.

``timed`` marks a stage, as a context or as a decorator. It does nothing unless a ``Stopwatch`` is
running.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from enum import Enum
from typing import Self


class Stage(Enum):
    """What time is spent on."""

    IMPORTS = "importing libraries"
    LOADING = "loading data and models"
    TRAINING = "training models"
    COPYING = "making faster copies of F"
    FORWARD = "F forward"
    BACKWARD = "F backward, in attacks"
    DRAWING = "drawing random numbers"
    MIXING = "mixing or transforming images"
    AVERAGING = "averaging predictions"
    ATTACKING = "steps and losses of attacks"
    PEERS = "other libraries' attacks"
    REST = "everything else"


class Stopwatch:
    """Start on construction, and count every second for the innermost open stage.

    So the stages add up to the whole time. What is not marked is ``Stage.REST``.

    >>> with Stopwatch() as watch, timed(Stage.LOADING):
    ...     pass
    >>> watch.read()[Stage.TRAINING]
    0.0
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = dict.fromkeys(Stage, 0.0)
        #: How many images went through F.
        self.images = 0
        #: Called whenever the clock is read: what waits for a GPU, if one computes.
        self.wait: Callable[[], object] = lambda: None
        self._clock = clock
        self._last = clock()
        self._open = [(Stage.REST, 0)]
        self._token: Token[Stopwatch | None] | None = None

    def enter(self, stage: Stage, images: int = 0) -> None:
        """Begin a stage inside of the open one."""
        self.read()
        # An outer stage of the same kind is a defence around F: its images are not counted.
        self._open = [(outer, 0 if outer is stage else count) for outer, count in self._open]
        self._open.append((stage, images))

    def leave(self) -> None:
        """End the innermost stage."""
        self.read()
        self.images += self._open.pop()[1]

    def read(self) -> dict[Stage, float]:
        """The seconds of each stage until now."""
        self.wait()
        now = self._clock()
        self._seconds[self._open[-1][0]] += now - self._last
        self._last = now
        return self._seconds

    def __enter__(self) -> Self:
        self._token = _RUNNING.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _RUNNING.reset(self._token)


_RUNNING: ContextVar[Stopwatch | None] = ContextVar("running stopwatch", default=None)


class timed(ContextDecorator):  # noqa: N801 (used like a function)
    """Mark some lines, or a function, as a stage; ``images`` pass through F in it."""

    def __init__(self, stage: Stage, *, images: int = 0) -> None:
        self.stage = stage
        self.images = images

    def __enter__(self) -> None:
        if (watch := _RUNNING.get()) is not None:
            watch.enter(self.stage, self.images)

    def __exit__(self, *_: object) -> None:
        if (watch := _RUNNING.get()) is not None:
            watch.leave()
