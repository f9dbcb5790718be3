"""The command, in a process of its own."""

from __future__ import annotations

import io
import json
import signal

import pytest
import torch
from PIL import Image

from e2e.process import call
from mixup_inference import load_dataset
from mixup_inference.cli import guard_serve
from mixup_inference.cli.guard import Serve
from mixup_inference.errors import InputError
from mixup_inference.guard import Guard
from serving.running import Process, document, in_threads


def test_sigterm_answers_what_was_accepted_and_exits_with_0(folder, digits):
    """Forty requests wait for company that never comes when the signal does."""
    guard = Guard.load(folder)
    with Process(folder, "--allow-seeds", "--max-wait-ms", "1e7", "--max-batch", "1000") as server:

        def ask(row):
            request = document(digits[row : row + 1])
            seed = {"name": "seed", "shape": [1], "datatype": "INT64", "data": [row]}
            request["inputs"].append(seed)
            return lambda: server.infer(request)

        def end():
            server.until(lambda: server.metric("guard_queue_rows") == 40)
            return server.end()

        *replies, (code, _) = in_threads([*(ask(row) for row in range(40)), end])
    assert code == 0
    offline = guard.predict(digits, seeds=torch.arange(40))
    assert [reply.status for reply in replies] == [200] * 40
    for row, reply in enumerate(replies):
        found = {o["name"]: o["data"] for o in reply.json["outputs"]}
        assert found["label"] == [int(offline.label[row])]
        assert found["score"] == pytest.approx([float(offline.score[row])], abs=1e-5)


def test_under_load_every_answer_that_begins_is_whole(folder, digits):
    """Clients that go on until nobody listens see answers and closed connections, no errors."""
    with Process(folder) as server:
        seen = []

        def go_on():
            try:
                while True:
                    seen.append(server.infer(document(digits[:2])).status)
            except (ConnectionError, OSError):
                return

        def end():
            server.until(lambda: len(seen) >= 30)
            return server.end()

        *_, (code, _) = in_threads([go_on] * 8 + [end])
    assert code == 0
    assert set(seen) == {200}


def test_nothing_of_a_request_is_logged(folder, digits):
    with Process(folder, MIXUP_INFERENCE_TOKEN="hush-token") as server:  # noqa: S106
        headers = {"Authorization": "Bearer hush-token"}
        request = document(digits[:1], id="hush-id")
        assert (
            server.ask("POST", "/v2/models/guard/infer", json.dumps(request), headers).status == 200
        )
        for method, path, body in (
            ("GET", "/hush-path?hush-query=1", None),
            ("POST", "/classify?seed=hush-seed", b"hush-picture"),
            ("POST", "/v2/models/hush-name/infer", b"{}"),
            ("POST", "/v2/models/guard/infer", b'{"hush-key": "hush-value"}'),
            ("POST", "/v2/models/guard/infer", b'{"inputs": [{"name": "hush-input"}]}'),
        ):
            assert server.ask(method, path, body, headers).refuses(400, 404)
            assert server.ask(method, path, body, {"Authorization": "hush-wrong"}).refuses(401)
        code, log = server.end()
    assert code == 0
    assert "/v2/models/{model_name}/infer 200" in log
    assert "hush" not in log


def test_quiet_means_no_line_a_request_and_pictures_are_recognised(folder):
    data = load_dataset("digits").train
    with Process(folder, "--quiet") as server:
        right = 0
        for row in range(20):
            out = io.BytesIO()
            pixels = (data.images[row, 0] * 255).round().to(torch.uint8).numpy()
            Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST).save(out, "PNG")
            found = server.ask("POST", "/classify", out.getvalue()).json
            right += found["undefended_label"] == str(int(data.labels[row]))
        code, log = server.end(signal.SIGINT)
    assert right > 15
    assert code == 130
    assert "classify" not in log


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "--port", "0"), "holds no guard"),
        (("nowhere", "--max-queue", "0"), "--max-queue must be more than 0"),
        (("nowhere", "--max-wait-ms", "-1"), "--max-wait-ms must be at least 0"),
        (("nowhere", "--token-file", "missing.txt"), "missing.txt"),
        (("nowhere", "--port", "99999"), "cannot listen on 127.0.0.1, port 99999"),
    ],
)
def test_mistakes_are_said_in_words(words, said):
    done = call("guard", "serve", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_not_installed_is_said_in_words(monkeypatch, folder):
    monkeypatch.setattr(guard_serve, "NEEDED", ("kserve", "not_there"))
    with pytest.raises(InputError, match=r"not_there.*pip install mixup-inference\[serve\]"):
        guard_serve.serve_guard(folder, Serve(), quiet=True)


@pytest.mark.parametrize("token", ["", "  \n", "two words", "tök", "a\0b"])
def test_what_is_no_token(monkeypatch, folder, tmp_path, token):
    (tmp_path / "token").write_text(token, encoding="utf-8")
    with pytest.raises(InputError, match="must hold one token"):
        guard_serve.serve_guard(folder, Serve(token_file=tmp_path / "token"), quiet=True)


def test_a_server_for_everybody_without_a_token_is_warned_of(monkeypatch, folder):
    from mixup_inference.serving import server

    called = []
    monkeypatch.setattr(server, "serve", lambda *args, **options: called.append(options))
    with pytest.warns(UserWarning, match="there is no token"):
        guard_serve.serve_guard(folder, Serve(host="0.0.0.0"), quiet=True)  # noqa: S104
    guard_serve.serve_guard(folder, Serve(host="::1"), quiet=True)  # no warning
    assert [options["host"] for options in called] == ["0.0.0.0", "::1"]  # noqa: S104
