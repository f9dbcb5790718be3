from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

from mixup_inference.datasets import download
from mixup_inference.datasets.download import RemoteFile, fetch, md5_of
from mixup_inference.errors import DownloadError

CONTENT = np.random.default_rng(0).bytes(600_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
SIZE, HALF = len(CONTENT), len(CONTENT) // 2
PAGE = b"\n<!DOCTYPE html><html><body>Please log in.</body></html>"


class Server(ThreadingHTTPServer):
    """Serves CONTENT well or badly, by path, and keeps a list of what it was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []  # (path, Range header)
        self.gate = threading.Event()  # opened to let those go on that wait in the middle
        self.root = f"http://127.0.0.1:{self.server_port}"

    @property
    def ranges(self):
        return [range_ for _, range_ in self.asked]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        name = urlsplit(self.path).path.removeprefix("/").replace("-", "_")
        self.server.asked.append((self.path, self.headers.get("Range")))
        times = sum(path == self.path for path, _ in self.server.asked)
        with suppress(ConnectionError):
            getattr(self, name)(first=times == 1)

    def head(self, status=200, **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, body, status=200, **headers):
        self.head(status, Content_Length=len(body), **headers)
        self.wfile.write(body)

    def good(self, first):
        asked = self.headers.get("Range")
        if asked is None:
            return self.send(CONTENT)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        where = f"bytes {start}-{SIZE - 1}/{SIZE}"
        return self.send(CONTENT[start:], 206, Content_Range=where)

    def plain(self, first):
        self.send(CONTENT)

    def unsatisfiable(self, first):
        if self.headers.get("Range"):
            return self.send(b"", 416, Content_Range=f"bytes */{SIZE}")
        return self.send(CONTENT)

    def other_range(self, first):
        if self.headers.get("Range"):
            return self.send(CONTENT[7:], 206, Content_Range=f"bytes 7-{SIZE - 1}/{SIZE}")
        return self.send(CONTENT)

    def other_total(self, first):
        if self.headers.get("Range"):
            return self.send(b"?" * SIZE, 206, Content_Range=f"bytes {HALF}-{2 * SIZE}/{2 * SIZE}")
        return self.send(CONTENT)

    def always_partial(self, first):
        self.send(CONTENT, 206, Content_Range=f"bytes 0-{SIZE - 1}/{SIZE}")

    def cut(self, first):
        self.head(Content_Length=SIZE)
        self.wfile.write(CONTENT[:HALF])

    def cut_once(self, first):
        return self.cut(first) if first else self.good(first)

    def cut_without_length(self, first):
        if not first:
            return self.good(first)
        self.head()
        return self.wfile.write(CONTENT[:HALF])

    def wait_in_the_middle(self, first):
        self.head(Content_Length=SIZE)
        self.wfile.write(CONTENT[:HALF])
        self.wfile.flush()
        self.server.gate.wait(60)
        self.wfile.write(CONTENT[HALF:])

    def stall_once(self, first):
        return self.wait_in_the_middle(first) if first else self.good(first)

    def silent(self, first):
        self.server.gate.wait(60)

    def drip(self, first):
        self.head(Content_Length=SIZE)
        for byte in CONTENT:
            self.wfile.write(bytes([byte]))
            if self.server.gate.wait(0.01):
                return

    def steady(self, first):
        self.head(Content_Length=SIZE)
        for start in range(0, SIZE, SIZE // 10):
            self.wfile.write(CONTENT[start : start + SIZE // 10])
            self.server.gate.wait(0.1)

    def lie(self, first):
        self.send(bytes(SIZE))

    def html(self, first):
        self.send(PAGE)

    def long_html(self, first):
        self.send(PAGE.ljust(SIZE))

    def short(self, first):
        self.send(CONTENT[:-1])

    def long(self, first):
        self.send(CONTENT + b"more")

    def endless(self, first):
        self.head()
        self.wfile.write(CONTENT)
        while not self.server.gate.wait(0.001):
            self.wfile.write(bytes(1000))

    def missing(self, first):
        self.send_error(404)

    def busy(self, first):
        self.send_error(503)

    def busy_once(self, first):
        return self.busy(first) if first else self.good(first)

    def to_file(self, first):
        self.send(b"", 302, Location="file:///etc/hostname")

    def to_ftp(self, first):
        self.send(b"", 302, Location="ftp://127.0.0.1/x")

    def to_good(self, first):
        self.head(302, Location="/good")
        while not self.server.gate.wait(0.001):
            self.wfile.write(bytes(1000))

    def to_itself(self, first):
        self.send(b"", 302, Location="/to-itself")


class Recorder:
    """A progress that keeps what it was told."""

    def __init__(self):
        self.title, self.total, self.done, self.notes = None, None, 0, []

    @contextmanager
    def task(self, title, total):
        self.title, self.total = title, total
        yield self

    def advance(self, steps=1, note=None):
        self.done += steps
        self.notes.append(note)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "BACK_OFF", 0.01)
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.gate.set()
        server.shutdown()


def remote(server, *paths):
    return RemoteFile("data.bin", tuple(f"{server.root}/{path}" for path in paths), SIZE, MD5)


def get(server, folder, *paths, **options):
    path = fetch(remote(server, *paths), folder, **({"timeout": 5.0} | options))
    assert path == folder / "data.bin"
    assert path.read_bytes() == CONTENT
    assert not (folder / ".data.bin.part").exists()


def fails(server, folder, *paths, **options):
    """The message of a download that fails and leaves nothing under the final name."""
    with pytest.raises(DownloadError) as caught:
        fetch(remote(server, *paths), folder, **({"timeout": 5.0} | options))
    assert not (folder / "data.bin").exists()
    return str(caught.value)


def half_there(folder, content=CONTENT[:HALF]):
    (folder / ".data.bin.part").write_bytes(content)


def test_a_file_is_fetched_once_into_a_folder_that_is_made(server, tmp_path):
    seen = Recorder()
    folder = tmp_path / "new" / "folder"
    get(server, folder, "good", progress=seen)
    assert (seen.title, seen.total, seen.done) == ("download data.bin", SIZE, SIZE)
    get(server, folder, "good")
    assert server.asked == [("/good", None)]


def test_nothing_is_touched_where_the_file_is_already(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(CONTENT)
    get(server, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_md5_of(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")  # RFC 1321, appendix A.5
    assert md5_of(tmp_path / "x") == "900150983cd24fb0d6963f7d28e17f72"


@pytest.mark.parametrize("wrong", [b"", CONTENT[:-1], bytes(SIZE)])
def test_a_wrong_file_is_replaced_when_the_right_one_is_there_and_not_before(
    server, tmp_path, wrong
):
    path = tmp_path / "data.bin"
    path.write_bytes(wrong)
    with pytest.raises(DownloadError):
        fetch(remote(server, "missing"), tmp_path)
    assert path.read_bytes() == wrong
    get(server, tmp_path, "good")


def test_going_on_asks_for_the_rest_only(server, tmp_path):
    half_there(tmp_path)
    seen = Recorder()
    get(server, tmp_path, "good", progress=seen)
    assert server.ranges == [f"bytes={HALF}-"]
    assert seen.done == SIZE


@pytest.mark.parametrize(
    ("path", "requests"),
    [("plain", 1), ("unsatisfiable", 2), ("other-range", 2), ("other-total", 2)],
)
def test_a_server_that_cannot_go_on_starts_anew(server, tmp_path, path, requests):
    half_there(tmp_path)
    get(server, tmp_path, path, retries=0)
    assert server.ranges == [f"bytes={HALF}-", None][:requests]


def test_a_part_of_something_else_is_thrown_away(server, tmp_path):
    half_there(tmp_path, bytes(1000))
    get(server, tmp_path, "good", retries=0)
    assert server.ranges == ["bytes=1000-", None]


@pytest.mark.parametrize(
    ("part", "requests"), [(CONTENT, 0), (bytes(SIZE), 1), (CONTENT + b"more", 1)]
)
def test_a_part_that_is_complete_or_too_long(server, tmp_path, part, requests):
    half_there(tmp_path, part)
    get(server, tmp_path, "good", retries=0)
    assert server.ranges == [None] * requests


@pytest.mark.parametrize("path", ["cut-once", "cut-without-length", "stall-once"])
def test_a_broken_transfer_goes_on_where_it_broke(server, tmp_path, path):
    seen = Recorder()
    get(server, tmp_path, path, timeout=1.0, progress=seen)
    assert server.ranges == [None, f"bytes={HALF}-"]
    assert seen.done == SIZE


def test_the_next_mirror_goes_on_where_the_one_before_broke(server, tmp_path):
    get(server, tmp_path, "cut", "missing", "html", "good", retries=0)
    rest = f"bytes={HALF}-"
    assert server.asked == [("/cut", None), ("/missing", rest), ("/html", rest), ("/good", rest)]


def test_a_server_error_passes(server, tmp_path):
    get(server, tmp_path, "busy-once")
    assert server.asked == [("/busy-once", None)] * 2


def test_waits_grow_and_tries_end(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(
        download, "time", SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    )
    message = fails(server, tmp_path, "busy", retries=3)
    assert f"{server.root}/busy: HTTP 503 Service Unavailable (tried 4 times)" in message
    assert len(server.asked) == 4
    assert waits == [0.01, 0.02, 0.04]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "HTTP 404 Not Found"),
        ("lie", "another file of the same size: its MD5 is "),
        ("html", "an HTML page, not the file"),
        ("long-html", "an HTML page, not the file"),
        ("short", "it offers 599,999 bytes instead of 600,000"),
        ("long", "it offers 600,004 bytes instead of 600,000"),
        ("always-partial", "HTTP 206 instead of the file"),
        ("to-file", "file:///etc/hostname"),
        ("to-ftp", "redirects to ftp://127.0.0.1/x"),
    ],
)
def test_what_stays_wrong_is_not_tried_again(server, tmp_path, path, reason):
    message = fails(server, tmp_path, path)
    assert f"{server.root}/{path}: " in message
    assert reason in message
    assert len(server.asked) == 1
    assert not (tmp_path / ".data.bin.part").exists()
    get(server, tmp_path, path, "good")  # the next mirror has it


def test_a_server_that_says_nothing(server, tmp_path):
    start = time.monotonic()
    message = fails(server, tmp_path, "silent", timeout=0.2, retries=1)
    assert "no answer within 0.2 s (tried 2 times)" in message
    assert time.monotonic() - start < 3


def test_a_server_that_drips(server, tmp_path):
    start = time.monotonic()
    message = fails(server, tmp_path, "drip", timeout=0.5, retries=0)
    assert "bytes came within 0.5 s" in message
    assert time.monotonic() - start < 3


def test_a_transfer_may_take_longer_than_the_timeout(server, tmp_path):
    get(server, tmp_path, "steady", timeout=0.4, retries=0)


def test_no_more_than_the_file_is_read(server, tmp_path):
    get(server, tmp_path, "endless", retries=0)


def test_redirections_are_followed_but_not_read_and_not_for_ever(server, tmp_path):
    message = fails(server, tmp_path, "to-itself")
    assert "HTTP 302" in message
    assert message.count("\n") == 2  # the headline, the mirror, the advice
    half_there(tmp_path)
    server.asked.clear()
    get(server, tmp_path, "to-good")
    assert server.asked == [("/to-good", f"bytes={HALF}-"), ("/good", f"bytes={HALF}-")]


def test_the_proxy_of_the_environment_is_used(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.root)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    file = RemoteFile("data.bin", ("http://example.invalid/good",), SIZE, MD5)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("http://example.invalid/good", None)]


def test_every_mirror_is_named_when_none_answers(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "BACK_OFF", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    urls = (
        f"http://127.0.0.1:{port}/a",
        f"http://127.0.0.1:{port}/b",
        "http://127.0.0.1:port/c",
        "http://[127.0.0.1/c",
        "file:///etc/hostname",
        "ftp://127.0.0.1/d",
    )
    with pytest.raises(DownloadError) as caught:
        fetch(RemoteFile("data.bin", urls, SIZE, MD5), tmp_path, retries=1)
    lines = str(caught.value).splitlines()
    for url, line, reason in zip(
        urls,
        lines[1:],
        ["refused (tried 2 times)"] * 2
        + ["not a usable address"] * 2
        + ["only http and https"] * 2,
        strict=False,
    ):
        assert f"{url}: " in line
        assert reason in line
    assert len(lines) == len(urls) + 2
    assert f"put the file into {tmp_path} by hand" in lines[-1]


def test_what_came_is_kept_for_the_next_time(server, tmp_path):
    assert "300,000 bytes are kept" in fails(server, tmp_path, "cut", "missing", retries=0)
    get(server, tmp_path, "good")
    assert server.ranges[-1] == f"bytes={HALF}-"


def test_an_interruption_keeps_the_part_and_frees_the_lock(server, tmp_path):
    class Impatient(Recorder):
        def advance(self, steps=1, note=None):
            if steps > 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(remote(server, "good"), tmp_path, progress=Impatient())
    assert not (tmp_path / "data.bin").exists()
    came = (tmp_path / ".data.bin.part").stat().st_size
    assert 0 < came < SIZE
    get(server, tmp_path, "good")
    assert server.ranges == [None, f"bytes={came}-"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_disk_that_becomes_full(server, tmp_path):
    part = tmp_path / ".data.bin.part"
    part.symlink_to("/dev/full")  # every write fails with ENOSPC
    message = fails(server, tmp_path, "good", "plain")
    assert "the disk became full while data.bin (600,000 bytes)" in message
    assert not part.is_symlink()
    assert len(server.asked) == 1  # another mirror would not help
    get(server, tmp_path, "good")


def test_a_disk_that_is_too_full_to_begin(server, tmp_path, monkeypatch):
    half_there(tmp_path)
    usage = SimpleNamespace(free=HALF - 1)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage)
    message = fails(server, tmp_path, "good")
    assert "needs 300,000 more bytes" in message
    assert "only 299,999 are free" in message
    assert server.asked == []
    usage.free += 1
    get(server, tmp_path, "good")


def test_a_folder_that_cannot_be_written_to(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    message = fails(server, tmp_path / "file" / "folder", "good")
    assert f"cannot keep data.bin in {tmp_path / 'file' / 'folder'}" in message
    (tmp_path / ".data.bin.part").mkdir()
    assert "Choose a folder that can be written to" in fails(server, tmp_path, "good")


#: A process of its own; it takes the module from its file, since the package imports torch.
CHILD = """
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path

class Notes:
    @contextmanager
    def task(self, title, total):
        yield self
    def advance(self, steps=1, note=None):
        if note:
            Path(note.split()[0]).touch()

module, url, size, md5 = sys.argv[1:]
download = runpy.run_path(module)
file = download["RemoteFile"]("data.bin", (url,), int(size), md5)
print(download["fetch"](file, Path("."), progress=Notes(), timeout=60))
"""


@contextmanager
def child(server, folder, path):
    """A process that downloads into its working directory, and is gone afterwards."""
    options = [download.__file__, f"{server.root}/{path}", str(SIZE), MD5]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *options], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_two_processes_make_one_download(server, tmp_path):
    path = "wait-in-the-middle"
    with child(server, tmp_path, path) as one, child(server, tmp_path, path) as other:
        wait_until((tmp_path / "waiting").exists)  # whichever is the second says so
        assert not (tmp_path / "data.bin").exists()
        server.gate.set()
        assert [each.communicate(timeout=60)[0] for each in (one, other)] == ["data.bin\n"] * 2
    assert server.asked == [("/wait-in-the-middle", None)]
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_killed_process_leaves_a_part_that_the_next_one_completes(server, tmp_path):
    part = tmp_path / ".data.bin.part"
    with child(server, tmp_path, "wait-in-the-middle"):
        wait_until(lambda: part.exists() and part.stat().st_size > 0)
    assert not (tmp_path / "data.bin").exists()
    came = part.stat().st_size
    get(server, tmp_path, "good")
    assert server.ranges == [None, f"bytes={came}-"]
