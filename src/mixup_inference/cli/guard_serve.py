"""The command `guard serve`: a guard's folder behind HTTP."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, fields
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from warnings import warn

from mixup_inference.cli.console import say
from mixup_inference.cli.guard import Serve
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.serving.limits import Limits

#: Of the extra ``serve``.
NEEDED = ("kserve", "fastapi", "uvicorn", "prometheus_client", "python_multipart")
#: Of the limits.
MAY_BE_ZERO = ("allow_seeds", "max_wait_ms")
TOKEN = "MIXUP_INFERENCE_TOKEN"  # noqa: S105 (where it is, not what)


def serve_guard(folder: Path, what: Serve, *, quiet: bool) -> None:
    """Check the options, then serve until SIGTERM or Ctrl-C."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"this needs {missing[0]}, which is not installed. "
            "Run `pip install mixup-inference[serve]`."
        )
    limits = Limits(**{f.name: getattr(what, f.name) for f in fields(Limits)})
    for name, value in asdict(limits).items():
        least = "at least" if name in MAY_BE_ZERO else "more than"
        if not (value >= 0 if name in MAY_BE_ZERO else value > 0):
            raise InputError(f"--{name.replace('_', '-')} must be {least} 0; saw {value}.")
    token = _token(what.token_file)
    if token is None and not _is_loopback(what.host):
        warn(
            f"whoever reaches {what.host} can use this server: there is no token (--token-file).",
            MixupInferenceWarning,
            stacklevel=2,
        )
    logging.getLogger("mixup_inference.serving").setLevel("WARNING" if quiet else "INFO")
    arguments, sys.argv = sys.argv, sys.argv[:1]  # kserve parses them when it is imported
    from mixup_inference.serving.server import serve  # noqa: PLC0415 (slow to import)

    sys.argv = arguments
    serve(
        folder, host=what.host, port=what.port, name=what.name, limits=limits, token=token, say=say
    )


def _token(file: Path | None) -> str | None:
    """The token, without the white space around it."""
    text = os.environ.get(TOKEN) if file is None else file.read_text(encoding="utf-8")
    if text is None:
        return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        source = f"${TOKEN}" if file is None else file
        raise InputError(f"{source} must hold one token of printable ASCII without spaces.")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
