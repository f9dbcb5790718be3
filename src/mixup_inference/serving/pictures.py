"""Pictures out of requests: the file of a form, decoded beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import torch
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from torch import Tensor

from mixup_inference.datasets.image_file import read_picture
from mixup_inference.errors import InputError
from mixup_inference.serving.limits import Limits, Refusal

#: Pictures that wait to be decoded, at most.
WAITING = 64


class Decoder:
    """Decodes one picture at a time, so that few are in memory; its header is checked first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pending = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    async def decode(self, picture: bytes, shape: tuple[int, int, int]) -> Tensor:
        """A batch of one image of this shape, uint8; or a Refusal."""
        if self.pending >= WAITING:
            raise Refusal.busy(1)
        self.pending += 1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.limits.timeout):
                row = await loop.run_in_executor(
                    self._thread, read_picture, picture, shape, self.limits.max_pixels
                )
        except InputError as error:
            reason = str(error).removeprefix("picture: ")
            raise Refusal(400, f"the picture cannot be read: {reason}") from None
        except TimeoutError:
            raise Refusal.busy(5) from None
        finally:
            self.pending -= 1
        return torch.from_numpy(row)[None]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class _InMemory(MultiPartParser):
    spool_max_size = 2**62  # the body is in memory already; nothing is written to disk


async def file_of(request: Request, body: bytes) -> bytes:
    """The file of a form, or the body itself if it is none."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return body

    async def stream() -> AsyncIterator[bytes]:
        yield body

    try:
        parser = _InMemory(request.headers, stream(), max_files=1, max_fields=0)
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError, LookupError):
        raise Refusal(
            400, "the form cannot be read; it must hold one file and nothing else."
        ) from None
    for _, part in form.multi_items():
        if not isinstance(part, str):
            content: bytes = await part.read()
            return content
    raise Refusal(400, "the form holds no file.")
