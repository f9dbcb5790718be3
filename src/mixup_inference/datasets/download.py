"""Download a file of known size and MD5 from one of several mirrors.

Only a verified file gets the final name. Until then the content grows
in ``.NAME.part``, where an interrupted download goes on the next time; ``.NAME.lock`` lets a
second process wait for the first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, InvalidURL
from itertools import chain
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from mixup_inference.errors import DownloadError
from mixup_inference.utils.progress import SILENT, Progress, Task

BLOCK = 1 << 18
#: Bytes per second; a server that stays below for the length of the timeout is given up.
SLOWEST = 1024
#: Seconds before the first retry; each one after it waits twice as long.
BACK_OFF = 0.5
WEB = ("http", "https")
HTML = re.compile(rb"\s*<(!doctype html|html|head|body)", re.IGNORECASE)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web, and how to know that it is the right one."""

    name: str  # the name under which it is kept
    urls: tuple[str, ...]  # mirrors, in order of preference
    size: int  # bytes
    md5: str


class _PassingError(Exception):
    """A temporary failure of a mirror; worth another try."""


class _RefusalError(Exception):
    """A permanent failure of a mirror."""


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    progress: Progress = SILENT,
    retries: int = 3,
    timeout: float = 30.0,
) -> Path:
    """The verified file in ``folder``, downloaded unless it is there already.

    Each mirror is tried in turn, and up to ``retries`` times more after what may pass: an answer
    that does not come within ``timeout`` seconds, a broken or truncated transfer, a server error.
    DownloadError says what was wrong with every mirror, or with the disk.
    """
    path, part = folder / file.name, folder / f".{file.name}.part"
    try:
        if _intact(path, file):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with (
            progress.task(f"download {file.name}", total=file.size) as task,
            _lock(folder / f".{file.name}.lock", task),
        ):
            if not _intact(path, file):  # another process may have fetched it meanwhile
                _download(file, part, task, retries, timeout)
                part.replace(path)
    except DownloadError:
        raise
    except OSError as error:  # of this machine: those of the network became reasons above
        raise DownloadError(
            f"cannot keep {file.name} in {folder}: {error}. Choose a folder that can be written to."
        ) from error
    return path


def md5_of(path: Path) -> str:
    """The MD5 of a file's content, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _intact(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and md5_of(path) == file.md5


def _lock(path: Path, task: Task) -> AbstractContextManager[object]:
    """Acquire the lock file; a second process reports that it waits."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 (only a download needs it)

    lock = FileLock(path)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        task.advance(0, "waiting for another process that downloads it")
        return lock.acquire()


def _download(file: RemoteFile, part: Path, task: Task, retries: int, timeout: float) -> None:
    """Fill ``part`` with the verified content from the first mirror that has it."""
    there = _size(part)
    free = shutil.disk_usage(part.parent).free
    if free < file.size - there:
        raise DownloadError(
            f"{file.name} needs {file.size - there:,} more bytes in {part.parent}, where only "
            f"{free:,} are free. Make room there, or choose another folder."
        )
    task.advance(there)
    reasons = []
    try:
        for url in file.urls:
            try:
                _from_mirror(url, file, part, task, retries, timeout)
            except _RefusalError as error:
                reasons.append(f"  {url}: {error}")
            else:
                with part.open("r+b") as content:
                    os.fsync(content.fileno())
                return
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"the disk became full while {file.name} ({file.size:,} bytes) was written to "
            f"{part.parent}; what had come was removed. Make room there, or choose another folder."
        ) from error
    kept = f" {_size(part):,} bytes are kept, and the next try goes on there." * (_size(part) > 0)
    raise DownloadError(
        "\n".join([f"{file.name} could not be downloaded:", *reasons])
        + f"\nTry again later, or put the file into {part.parent} by hand.{kept}"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _from_mirror(
    url: str, file: RemoteFile, part: Path, task: Task, retries: int, timeout: float
) -> None:
    """Complete ``part`` from one mirror, or raise a refusal with the reason."""
    failures = 0
    while True:
        start = _size(part)
        try:
            if start < file.size:
                start = _transfer(url, file, part, task, timeout)
        except _PassingError as error:
            failures += 1
            if failures > retries:
                raise _RefusalError(f"{error} (tried {failures} times)") from error
            time.sleep(BACK_OFF * 2 ** (failures - 1))
            continue
        md5 = md5_of(part)
        if md5 == file.md5:
            return
        part.unlink()
        if start == 0:
            raise _RefusalError(f"another file of the same size: its MD5 is {md5}, not {file.md5}")
        # Pieced together from several transfers, so the earlier ones may be to blame: start anew.


def _transfer(url: str, file: RemoteFile, part: Path, task: Task, timeout: float) -> int:
    """Complete ``part`` in one transfer, and say at which byte that one began."""
    with _network(timeout):
        response, start = _open(url, _size(part), file.size, timeout)
    with response:
        blocks = _blocks(response, start, file.size, timeout)
        first = next(blocks)  # before the part is touched, so that a refusal leaves it as it is
        with part.open("ab" if start else "wb") as out:
            for block in chain([first], blocks):
                out.write(block)
                task.advance(len(block))
    return start


@contextmanager
def _network(timeout: float) -> Iterator[None]:
    """Turn network errors into temporary and permanent failures."""
    try:
        yield
    except (ValueError, InvalidURL) as error:
        raise _RefusalError(f"not a usable address ({_one_line(str(error))})") from error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        slow = isinstance(cause, TimeoutError)
        text = f"no answer within {timeout:g} s" if slow else str(cause) or type(cause).__name__
        raise _PassingError(_one_line(text)) from error


def _one_line(text: str) -> str:
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:200]


class _WebOnly(HTTPRedirectHandler):
    """Follows redirections to http and https only; urllib itself would allow ftp."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        fp.close()  # urllib would read all that comes with the redirection, however long
        if urlsplit(newurl).scheme not in WEB:
            raise HTTPError(req.full_url, code, f"redirects to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, start: int, size: int, timeout: float) -> tuple[Any, int]:
    """The response of a server asked for everything from ``start``, and where it begins."""
    if urlsplit(url).scheme not in WEB:
        raise _RefusalError("only http and https are fetched")
    headers = {"User-Agent": "mixup-inference"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        request = Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
        response = build_opener(_WebOnly).open(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if start and error.code == 416:
            return _open(url, 0, size, timeout)
        kind = _PassingError if error.code >= 500 else _RefusalError
        raise kind(_one_line(f"HTTP {error.code} {error.reason}")) from error
    if response.status == 200:
        return response, 0
    rest = response.headers.get("Content-Range") == f"bytes {start}-{size - 1}/{size}"
    if start and rest and response.status == 206:
        return response, start
    response.close()
    if start:
        return _open(url, 0, size, timeout)
    raise _RefusalError(f"HTTP {response.status} instead of the file")


def _blocks(response: Any, start: int, size: int, timeout: float) -> Iterator[bytes]:
    """The bytes from ``start`` to ``size``, in blocks as they come, and never more."""
    offered, have = response.length, start
    recent, since = 0, time.monotonic()
    while have < size:
        with _network(timeout):
            block = response.read1(min(BLOCK, size - have))
        if have == 0 and HTML.match(block):
            raise _RefusalError("an HTML page, not the file")
        if have == start and offered not in (None, size - start):
            raise _RefusalError(f"it offers {offered:,} bytes instead of {size - start:,}")
        if not block:
            raise _PassingError(f"the transfer ended {size - have:,} bytes too early")
        yield block
        have, recent = have + len(block), recent + len(block)
        if time.monotonic() - since > timeout:
            if recent < SLOWEST * timeout:
                raise _PassingError(f"only {recent:,} bytes came within {timeout:g} s")
            recent, since = 0, time.monotonic()
