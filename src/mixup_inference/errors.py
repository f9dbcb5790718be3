"""The errors that are meant for people: what was wrong, what was seen, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MixupInferenceError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(MixupInferenceError, ValueError):
    """Something that the caller gave is wrong and can be put right by the caller."""


class MissingDataError(InputError):
    """A data set is not where it was looked for; the message says what to put where."""


class DownloadError(MixupInferenceError, OSError):
    """A file could not be fetched from any of its sources."""


class DiskFullError(MixupInferenceError, OSError):
    """There was no room for a file; what was there before is still there."""


class TrainingDivergedError(MixupInferenceError, ArithmeticError):
    """The training loss became NaN or infinite."""


class MixupInferenceWarning(UserWarning):
    """Something that works but deserves a look."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """An error for a name that is not in ``known``, with the nearest one that is.

    >>> print(unknown_name("defence", "mi-lo", ["mi-ol", "gaussian"]))
    unknown defence 'mi-lo'; did you mean 'mi-ol'? Known: gaussian, mi-ol.
    """
    options = sorted(known)
    spelt = {option.lower(): option for option in options}
    near = difflib.get_close_matches(str(name).lower(), spelt, n=1, cutoff=0.5)
    hint = f"; did you mean {spelt[near[0]]!r}?" if near else "."
    return InputError(f"unknown {kind} {name!r}{hint} Known: {', '.join(options)}.")
