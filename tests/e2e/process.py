"""Calling the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "mixup_inference.cli"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def call(*args, cwd=None):
    return subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd,
        timeout=300, check=False,
    )  # fmt: skip
