"""`make serve-bench`: a guard behind HTTP, against the bare model behind the same server.

Three servers take turns, each in a process of its own: (a) the model alone, (b) the guard without
batches and without stopping early, (c) the guard as it is served by default. Server and engine have
one thread, the client is another process, and every request has one picture.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from mixup_inference import Pool, from_pretrained, load_dataset
from mixup_inference.guard import Answer, Guard
from mixup_inference.validation import as_pixels

FOLDER = Path(__file__).parent
SERVERS = ("bare model", "guard, plain", "guard")
CONNECTIONS = (1, 8, 64)
MODELS = {"small_cnn, 8x8": "digits-mixup", "fast_resnet, 32x32": "cifar10-mixup"}
ROUNDS, SECONDS = 3, 5.0


class Bare:
    """The model alone, as a guard that flags nothing."""

    def __init__(self, guard: Guard) -> None:
        self.model, self.pool, self.class_names = guard.model, guard.pool, guard.class_names
        self.base = guard.inference.detector

    @torch.no_grad()
    def predict(self, x: torch.Tensor, *, seeds: torch.Tensor | None = None) -> Answer:  # noqa: ARG002
        """F's answer."""
        p = self.base.base_log_probs(as_pixels(x)).exp()
        label, zero = p.argmax(1), torch.zeros(len(x))
        return Answer(label, p, label, zero, zero.bool(), zero.long())


def serve(kind: str, folder: Path) -> None:
    """Run one of the servers; it prints its port."""
    from mixup_inference.serving.limits import Limits  # noqa: PLC0415 (not in every environment)
    from mixup_inference.serving.server import listen, make_server  # noqa: PLC0415

    torch.set_num_threads(1)
    guard: Any = Guard.load(folder)
    limits = Limits()
    if kind == "bare model":
        guard = Bare(guard)
    elif kind == "guard, plain":
        settings = guard.settings.model_copy(update={"stop": None})
        guard = Guard(guard.model, guard.pool, guard.calibration, settings)
        limits = Limits(max_batch=1, max_wait_ms=0)
    sock = listen("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    server, service = make_server(lambda: guard, "guard", limits)
    server.run([sock])
    if service.problem is not None:
        raise service.problem


async def load(port: int, bodies: list[bytes], connections: int, seconds: float) -> list[float]:
    """Ask without a break for so long; the time of each answer."""
    rows, times, end = cycle(bodies), [], time.perf_counter() + seconds

    async def ask_on() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            writer.write(next(rows))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = int(head.lower().split(b"\ncontent-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(ask_on() for _ in range(connections)))
    return times


def cycle(bodies: list[bytes]) -> Iterator[bytes]:
    """The bodies, again and again."""
    while True:
        yield from bodies


def requests_for(images: np.ndarray[Any, Any]) -> list[bytes]:
    """A request of the Open Inference Protocol for each image, with a binary tensor."""
    out = []
    for image in images:
        raw = image.tobytes()
        tensor = {
            "name": "images", "shape": [1, *image.shape], "datatype": "UINT8",
            "parameters": {"binary_data_size": len(raw)},
        }  # fmt: skip
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        out.append(
            b"POST /v2/models/guard/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (len(head), len(head) + len(raw))
            + head
            + raw
        )
    return out


def measure(name: str) -> dict[str, Any]:
    """Requests a second and latencies of the three servers, by the number of connections."""
    data = load_dataset(name.removesuffix("-mixup"))
    train, rest = data.train, data.test or data.train
    points = rest.images[:512]
    calibration = rest.images[512:1012], rest.labels[512:1012]
    with TemporaryDirectory() as folder:
        pool = Pool(train.images, train.labels)
        guard = Guard.fit(from_pretrained(name), pool, *calibration, per_class=100)
        guard.save(folder)
        pixels = points if points.dtype == torch.uint8 else (points * 255).round().byte()
        bodies = requests_for(pixels.numpy())
        found: dict[str, dict[int, list[list[float]]]] = {
            kind: {count: [] for count in CONNECTIONS} for kind in SERVERS
        }
        direct: list[float] = []
        for _ in range(ROUNDS):
            for kind in SERVERS:
                with running(kind, folder) as port:
                    asyncio.run(load(port, bodies, 8, 1.0))  # warms up
                    for count in CONNECTIONS:
                        found[kind][count].append(asyncio.run(load(port, bodies, count, SECONDS)))
            direct.append(engine_rate(Guard.load(folder), pixels))
        draws = Guard.load(folder).predict(pixels).draws.double().mean()
    out: dict[str, Any] = {"draws": float(draws), "engine": median(direct), "servers": {}}
    for kind, by_count in found.items():
        out["servers"][kind] = {
            count: {
                "rate": median(len(times) / SECONDS for times in rounds),
                "p50": median(float(np.quantile(times, 0.5)) for times in rounds),
                "p99": median(float(np.quantile(times, 0.99)) for times in rounds),
            }
            for count, rounds in by_count.items()
        }
    return out


def engine_rate(guard: Guard, pixels: torch.Tensor) -> float:
    """Images a second of the guard itself, called with full batches of 64."""
    batches = pixels.split(64)
    guard.predict(batches[0])
    count, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < SECONDS:
        count += len(guard.predict(batches[count // 64 % len(batches)]).label)
    return count / seconds


class running:  # noqa: N801 (a context manager)
    """A server in a process of its own; its port."""

    def __init__(self, kind: str, folder: str) -> None:
        command = [sys.executable, "-m", "benchmarks.serving", "--server", kind, folder]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def __enter__(self) -> int:
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        asyncio.run(until_ready(port))
        return port

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


async def until_ready(port: int) -> None:
    """Wait until the server has loaded its guard."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status = await reader.readline()
        writer.close()
        if b" 200 " in status:
            return
        await asyncio.sleep(0.1)


def main() -> None:
    """Measure all, and write serving.json; `make pages` puts it into docs/serving.md."""
    torch.set_num_threads(1)
    networks = {title: measure(name) for title, name in MODELS.items()}
    results = {
        "machine": {
            "cores": os.cpu_count(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "architecture": platform.machine(),
        },
        "rounds": ROUNDS,
        "seconds": SECONDS,
        "networks": networks,
    }
    (FOLDER / "serving.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", nargs=2, metavar=("KIND", "FOLDER"))
    asked = parser.parse_args().server
    if asked is None:
        main()
    else:
        serve(asked[0], Path(asked[1]))
