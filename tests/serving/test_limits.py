"""What a server does when it is full, slow, closed to strangers, or not ready."""

from __future__ import annotations

import http.client
import socket
import threading

import pytest
import torch

from mixup_inference.errors import InputError
from mixup_inference.serving import app
from mixup_inference.serving.server import listen
from serving.running import PATIENCE, Gated, document, run

IMAGE = torch.zeros(1, 1, 8, 10, dtype=torch.uint8)


def raw(port, content):
    """What comes back on a connection on which only this is sent, until it is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(content)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def started(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("path", ["/v2/models/guard/infer", "/classify"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(running, path, chunked):
    body = bytes(300_000)
    sent = iter([body[:100_000]] * 3) if chunked else body
    headers = {"Transfer-Encoding": "chunked"} if chunked else {}
    reply = running.ask("POST", path, sent, headers, chunked=chunked)
    assert reply.refuses(413)
    assert running.infer(document(IMAGE)).status == 200


def test_a_length_that_is_too_large_is_refused_before_the_body_comes(running):
    head = b"POST /classify HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    reply = raw(running.port, head + b"Content-Length: 99999999999\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 413")


def test_all_bodies_together_are_bounded(guard):
    """Seventeen clients send all but the last byte of the largest body; sixteen may."""
    size = 50_000
    head = f"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    with run(lambda: guard, max_body=size, timeout=PATIENCE) as server:
        server.until_ready()
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(17)]
        for connection in connections:
            connection.sendall(head + bytes(size - 1))
        server.until(lambda: server.metric('guard_requests_total{route="/classify",status="429"}'))
        for connection in connections:
            connection.close()
        server.until(lambda: server.metric("guard_requests_in_flight") == 1)  # this one
        assert server.infer(document(IMAGE)).status == 200


def test_a_body_that_comes_too_slowly(guard):
    with run(lambda: guard, timeout=1) as server:
        server.until_ready()
        head = b"POST /v2/models/guard/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        assert raw(server.port, head + b"{").startswith(b"HTTP/1.1 408")
        assert server.infer(document(IMAGE)).status == 200


@pytest.mark.parametrize(
    "content", [b"", b"GET /v2 HTTP/1.1\r\n", b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\nGET /v2 HT"]
)
def test_connections_whose_header_does_not_come_are_closed(guard, content):
    with run(lambda: guard, timeout=1) as server:
        answers = raw(server.until_ready().port, content)
        assert answers.count(b"HTTP/1.1 ") == content.count(b"\r\n\r\n")


def test_no_http_at_all(running):
    assert raw(running.port, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert running.infer(document(IMAGE)).status == 200


def test_a_full_server_says_when_to_come_again(guard):
    gated = Gated(guard)
    with run(lambda: gated, max_queue=3, max_batch=1) as server:
        server.until_ready()
        replies = []
        calls = [lambda: replies.append(server.infer(document(IMAGE)))] * 4
        threads = started(*calls[:1])
        server.until(lambda: gated.seeds)
        threads += started(*calls[1:])
        server.until(lambda: server.metric("guard_queue_rows") == 3)
        full = server.infer(document(IMAGE))
        assert full.refuses(429)
        assert int(full.headers["Retry-After"]) >= 1
        assert server.infer(document(IMAGE.repeat(4, 1, 1, 1))).refuses(400)  # never fits
        gated.open.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert [reply.status for reply in replies] == [200] * 4
        assert server.infer(document(IMAGE)).status == 200


def test_an_answer_that_takes_too_long(guard):
    gated = Gated(guard)
    with run(lambda: gated, timeout=1, max_batch=1) as server:
        first = started(lambda: server.until_ready().infer(document(IMAGE)))
        server.until(lambda: gated.seeds)
        late = server.infer(document(IMAGE))
        assert late.refuses(503)
        assert late.headers["Retry-After"]
        gated.open.set()
        first[0].join(PATIENCE)
        assert server.infer(document(IMAGE)).status == 200
        assert len(gated.seeds) == 2  # what was given up was not computed


def test_who_disconnects_leaves_the_queue(guard):
    gated = Gated(guard)
    with run(lambda: gated, max_batch=1) as server:
        first = started(lambda: server.until_ready().infer(document(IMAGE)))
        server.until(lambda: gated.seeds)
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/classify", picture())
        server.until(lambda: server.metric("guard_queue_rows") == 1)
        connection.close()
        server.until(lambda: server.metric("guard_queue_rows") == 0)
        gated.open.set()
        first[0].join(PATIENCE)
        assert len(gated.seeds) == 1


def picture():
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (10, 8)).save(out, "PNG")
    return out.getvalue()


def test_a_failing_engine_is_an_error_without_details(guard, caplog):
    hidden = "".join(["sec", "ret"])  # the log shows lines of the source

    class Broken(Gated):
        def predict(self, x, *, seeds=None):
            if seeds is not None:
                raise RuntimeError(f"{hidden} {x}")
            return self.guard.predict(x)

    with run(lambda: Broken(guard)) as server:
        reply = server.until_ready().infer(document(IMAGE))
        assert reply.refuses(500)
        assert hidden not in reply.json["error"]
        assert server.ask("GET", "/v2/health/ready").status == 200
    assert "RuntimeError" in caplog.text
    assert hidden not in caplog.text


def test_a_fault_of_the_server_is_a_sentence_too(guard, caplog, monkeypatch):
    hidden = "".join(["sec", "ret"])

    def fail(*_):
        raise RuntimeError(hidden)

    with run(lambda: guard) as server:
        server.until_ready()
        monkeypatch.setattr(app, "write_response", fail)
        assert server.infer(document(IMAGE)).refuses(500)
        monkeypatch.undo()
        assert server.infer(document(IMAGE)).status == 200
    assert "RuntimeError" in caplog.text
    assert hidden not in caplog.text


@pytest.mark.parametrize("path", ["/v2", "/docs", "/openapi.json", "/metrics", "/nowhere"])
def test_strangers_are_refused(guard, path):
    with run(lambda: guard, token="right") as server:  # noqa: S106
        server.until_ready()
        for header in (None, "Bearer", "Bearer wrong", "Bearer right2", "Basic right", "right"):
            headers = {} if header is None else {"Authorization": header}
            reply = server.ask("GET", path, headers=headers)
            assert reply.refuses(401)
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert server.ask("POST", "/classify", bytes(10**8)).refuses(401)
        known = server.ask("GET", path, headers={"Authorization": "Bearer right"})
        assert known.status == (404 if path == "/nowhere" else 200)
        assert server.ask("GET", "/v2/health/ready").status == 200


def test_while_it_loads_it_says_so(guard):
    loading = threading.Event()

    def load():
        assert loading.wait(PATIENCE)
        return guard

    with run(load) as server:
        assert server.ask("GET", "/v2/health/live").json == {"live": True}
        assert server.ask("GET", "/v2/health/ready").refuses(503)
        assert server.ask("GET", "/v2/models/guard/ready").refuses(503)
        assert server.ask("GET", "/v2/models/guard").refuses(503)
        for reply in (server.infer(document(IMAGE)), server.ask("POST", "/classify", picture())):
            assert reply.refuses(503)
            assert int(reply.headers["Retry-After"]) >= 1
        assert server.ask("GET", "/docs").status == 200
        loading.set()
        server.until_ready()
        assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
        assert server.infer(document(IMAGE)).status == 200


def test_what_cannot_be_loaded_ends_the_server():
    def load():
        raise InputError("there is no guard.")

    with run(load) as server:
        server.until(lambda: server.service.problem is not None)
    assert "no guard" in str(server.service.problem)


def test_metrics_count_what_happened(guard, images):
    seeds = {"name": "seed", "shape": [60], "datatype": "INT64", "data": list(range(60))}
    request = document(images)
    request["inputs"].append(seeds)
    offline = guard.predict(images, seeds=torch.arange(60))
    with run(lambda: guard, allow_seeds=True) as server:
        assert server.until_ready().infer(request).status == 200
        server.infer(b"{")
        route = 'route="/v2/models/{model_name}/infer"'
        expected = {
            f'guard_requests_total{{{route},status="200"}}': 1,
            f'guard_requests_total{{{route},status="400"}}': 1,
            f"guard_request_seconds_count{{{route}}}": 2,
            "guard_images_total": 60,
            "guard_images_flagged_total": int(offline.is_adversarial.sum()),
            "guard_draws_total": int(offline.draws.sum()),
            "guard_score_count": 60,
            "guard_batch_rows_count": 1,
            "guard_batch_rows_sum": 60,
            "guard_queue_rows": 0,
            "guard_ready": 1,
        }
        assert {name: server.metric(name) for name in expected} == expected
        low = server.metric('guard_score_bucket{le="0.0"}')
        assert low == int((offline.score <= 0).sum())


def test_a_port_that_is_taken_is_said_in_words(running):
    with pytest.raises(InputError, match="cannot listen on"):
        listen("127.0.0.1", running.port)
