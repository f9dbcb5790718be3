"""Ctrl-C ends a command even where compiled code loses it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pytest

from mixup_inference.cli.run import kept_interrupts


def turns_it_into_another_error():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("could not determine the shape") from None


def drops_it_twice():
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    time.sleep(60)


@pytest.mark.parametrize("library", [turns_it_into_another_error, drops_it_twice])
def test_no_interrupt_is_lost(library):
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), kept_interrupts(seconds=0.1):
        library()
    assert time.monotonic() - start < 50
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_stay_as_they_are():
    with pytest.raises(ValueError, match="ours"), kept_interrupts():
        raise ValueError("ours")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
