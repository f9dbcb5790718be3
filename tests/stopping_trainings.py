"""A training that is pulled the plug on."""

from __future__ import annotations


class StopError(Exception):
    """The plug."""


class StopAfter:
    """A progress listener that stops a training after some steps, or after some whole epochs."""

    def __init__(self, steps=None, *, epochs=None):
        self.steps, self.epochs = steps, epochs

    def task(self, title, total):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def advance(self, steps=1, note=None):
        if self.epochs is not None:
            self.epochs -= note is not None
            if self.epochs == 0:
                raise StopError
        else:
            self.steps -= steps
            if self.steps <= 0 and note is None:
                raise StopError
