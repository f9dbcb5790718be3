"""A server in a thread of this process, and a client that says what it likes."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

from e2e.process import COMMAND, ENVIRONMENT
from mixup_inference.serving.limits import Limits
from mixup_inference.serving.server import listen, make_server

#: Seconds that nothing here may take, on however slow a machine.
PATIENCE = 120


class Reply:
    """Status, headers and body of an answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    def refuses(self, *statuses):
        """Whether it is one of these errors, with a sentence."""
        sentence = self.json["error"]
        assert self.status in statuses, (self.status, sentence)
        assert set(self.json) == {"error"}
        assert " " in sentence
        assert "Traceback" not in sentence
        return True


class Running:
    def __init__(self, server, service, port):
        self.server, self.service, self.port = server, service, port

    @property
    def url(self):
        return f"127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, headers=(), *, chunked=False):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers), encode_chunked=chunked)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def infer(self, content, headers=()):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", "/v2/models/guard/infer", body, headers)

    def metric(self, name):
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")]
        return found[0] if found else 0

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)
        return self

    def until_ready(self):
        return self.until(lambda: self.service.ready)


class Process(Running):
    """A server in a process of its own; its port is read from what it prints."""

    def __init__(self, *args, **environment):
        self.process = subprocess.Popen(
            [*COMMAND, "guard", "serve", *map(str, args), "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**ENVIRONMENT, **environment},
        )  # fmt: skip
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])
        self.until(lambda: self.ask("GET", "/v2/health/ready").status == 200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out + err


@contextmanager
def run(load, *, token=None, **limits):
    """A server with these limits, which is shut down at the end."""
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server, service = make_server(load, "guard", Limits(**limits), token)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    running = Running(server, service, port).until(lambda: server.started)
    try:
        yield running
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Gated:
    """A guard that computes nothing until it may."""

    def __init__(self, guard):
        self.model, self.pool, self.class_names = guard.model, guard.pool, guard.class_names
        self.guard, self.open = guard, threading.Event()
        self.seeds = []

    def predict(self, x, *, seeds=None):
        if seeds is not None:  # not the warm-up
            self.seeds += seeds.tolist()
            assert self.open.wait(PATIENCE)
        return self.guard.predict(x, seeds=seeds)


def document(images, **more):
    """The JSON of a request for uint8 images."""
    tensor = {"name": "images", "shape": list(images.shape), "datatype": "UINT8"}
    return {"inputs": [tensor | {"data": images.flatten().tolist()}], **more}


def in_threads(functions):
    """What each function returns, all called at once."""
    results = [None] * len(functions)

    def call(place, function):
        try:
            results[place] = function()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for error in (result for result in results if isinstance(result, BaseException)):
        raise error
    return results
