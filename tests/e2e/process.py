"""Calling the command line in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

COMMAND = [sys.executable, "-m", "mixup_inference.cli"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}

#: Imports everything once and forks for each command, which saves the time to start.
SERVER = """
import importlib, json, os, pkgutil, sys, traceback
from mixup_inference import cli
for module in pkgutil.iter_modules(cli.__path__):
    if module.name != "__main__":
        importlib.import_module(f"mixup_inference.cli.{module.name}")

def run(args, cwd, out, err):
    os.chdir(cwd)
    for number, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.argv = ["mixup_inference/cli/__main__.py", *args]
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    if (child := os.fork()) == 0:
        code = run(**json.loads(line))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=ENVIRONMENT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    atexit.register(process.communicate)  # which ends it: nothing more is to come
    return process


def call(*args, cwd=None):
    """Run a command to its end, as ``subprocess.run`` does."""
    process = server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        out.touch()
        err.touch()
        job = {"args": [*map(str, args)], "cwd": str(cwd or Path.cwd()), "out": str(out)}
        process.stdin.write(json.dumps(job | {"err": str(err)}) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        texts = (path.read_bytes().decode() for path in (out, err))
        return subprocess.CompletedProcess(args, code, *texts)


def start(*args):
    """Run a command in a Python of its own, which a command that starts others needs."""
    return subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300,
        check=False,
    )  # fmt: skip
