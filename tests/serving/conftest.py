"""A small guard and a server around it. Without the extra ``serve`` only the batcher is tested."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from e2e.process import start
from guard.conftest import Columns, images_of
from mixup_inference import Pool, load_dataset
from mixup_inference.guard import Guard

HAS_SERVE = find_spec("kserve") is not None
collect_ignore_glob = [] if HAS_SERVE else ["test_[!b]*.py", "running.py"]


@pytest.fixture(scope="session")
def guard():
    clean, pool = torch.arange(400) % 10, torch.arange(100) % 10
    pool = Pool(images_of(pool, seed=1), pool)
    return Guard.fit(Columns(), pool, images_of(clean, seed=0), clean, draws=8, engine="eager")


@pytest.fixture(scope="session")
def images():
    """Images of the guard's shape, uint8, some of which it flags."""
    return images_of(torch.arange(60) % 10, seed=2)


@pytest.fixture(scope="module")
def running(guard):
    """A server in this process that takes seeds."""
    from serving.running import run

    with run(lambda: guard, allow_seeds=True, max_body=200_000, timeout=60) as server:
        yield server.until_ready()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The guard of `guard fit`, in its folder."""
    folder = tmp_path_factory.mktemp("serve") / "my-guard"
    done = start("guard", "fit", "--draws", "8", "--per-class", "10", "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def digits():
    images = load_dataset("digits").train.images[:40]
    return (images * 255).round().to(torch.uint8)
