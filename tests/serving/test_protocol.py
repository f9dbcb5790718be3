"""The Open Inference Protocol, by a client that was not written here, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from mixup_inference import __version__
from serving.running import Gated, document, in_threads, run

FIELDS = {
    "label": np.int64,
    "probabilities": np.float32,
    "undefended_label": np.int64,
    "score": np.float32,
    "is_adversarial": np.bool_,
    "draws": np.int64,
}


@pytest.fixture
def client(running):
    client = triton.InferenceServerClient(running.url)
    yield client
    client.close()


def tensor(name, array, kind, *, binary=True):
    out = triton.InferInput(name, list(array.shape), kind)
    out.set_data_from_numpy(array, binary_data=binary)
    return out


def same(found, offline, rows=slice(None)):
    """The client's arrays are those of the library, with their types."""
    for name, dtype in FIELDS.items():
        array = found.as_numpy(name)
        assert array.dtype == dtype
        assert array == pytest.approx(getattr(offline, name)[rows].numpy(), abs=1e-5), name


def test_server_and_model(client, guard):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("guard")
    assert client.get_server_metadata()["version"] == __version__
    metadata = client.get_model_metadata("guard")
    inputs = {i["name"]: (i["datatype"], i["shape"]) for i in metadata["inputs"]}
    assert inputs == {"images": ("FP32", [-1, 1, 8, 10]), "seed": ("INT64", [-1])}
    outputs = {o["name"]: o["datatype"] for o in metadata["outputs"]}
    assert list(outputs) == list(FIELDS)


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("kind", ["UINT8", "FP32"])
def test_answers_are_the_librarys_for_the_same_seeds(
    client, guard, images, kind, binary_in, binary_out
):
    x = images if kind == "UINT8" else images.float() / 255
    seeds = torch.arange(len(x)) * 7919 - 2**62
    inputs = [
        tensor("images", x.numpy(), kind, binary=binary_in),
        tensor("seed", seeds.numpy(), "INT64", binary=binary_in),
    ]
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in FIELDS]
    found = client.infer("guard", inputs, outputs=outputs, request_id="seven")
    assert found.get_response()["id"] == "seven"
    offline = guard.predict(x, seeds=seeds)
    assert offline.is_adversarial.any()
    same(found, offline)


def test_a_request_larger_than_a_batch(guard, images):
    x = images.repeat(4, 1, 1, 1)
    seeds = torch.arange(len(x))
    with run(lambda: guard, allow_seeds=True, max_batch=7) as server:
        client = triton.InferenceServerClient(server.until_ready().url)
        inputs = [tensor("images", x.numpy(), "UINT8"), tensor("seed", seeds.numpy(), "INT64")]
        same(client.infer("guard", inputs), guard.predict(x, seeds=seeds))
        client.close()
        assert server.metric("guard_batch_rows_count") == -(-len(x) // 7)


def test_only_the_outputs_that_are_asked_for_each_in_its_format(client, images):
    outputs = [
        triton.InferRequestedOutput("score", binary_data=False),
        triton.InferRequestedOutput("label", binary_data=True),
    ]
    found = client.infer("guard", [tensor("images", images.numpy(), "UINT8")], outputs=outputs)
    listed = {o["name"]: "data" in o for o in found.get_response()["outputs"]}
    assert listed == {"score": True, "label": False}
    assert found.as_numpy("label").shape == found.as_numpy("score").shape == (60,)


def test_requests_without_seeds_draw_anew_and_no_seed_comes_twice(guard, images):
    gated = Gated(guard)
    gated.open.set()
    with run(lambda: gated) as server:
        server.until_ready()
        replies = [server.infer(document(images)) for _ in range(5)]
        refused = server.infer(
            document(images[:1])
            | {"inputs": [*document(images[:1])["inputs"],
                          {"name": "seed", "shape": [1], "datatype": "INT64", "data": [1]}]}
        )  # fmt: skip
        assert refused.refuses(400)
        metadata = server.ask("GET", "/v2/models/guard").json
    assert [i["name"] for i in metadata["inputs"]] == ["images"]
    scores = {str(reply.json["outputs"][3]["data"]) for reply in replies}
    assert len(scores) == 5
    assert len(set(gated.seeds)) == len(gated.seeds) == 5 * len(images)


def test_the_client_is_told_what_is_wrong(client):
    wrong = tensor("images", np.zeros((2, 3, 8, 10), np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="images must have shape") as caught:
        client.infer("guard", [wrong])
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="not exist") as caught:
        client.infer("other", [tensor("images", np.zeros((1, 1, 8, 10), np.float32), "FP32")])
    assert caught.value.status() == "404"


def binary(header, tail=b"", length=None):
    text = json.dumps(header).encode()
    return text + tail, {"Inference-Header-Content-Length": str(length or len(text))}


ZEROS = {"name": "images", "shape": [1, 1, 8, 10], "datatype": "UINT8", "data": [0] * 80}
BYTES = {**ZEROS, "data": None, "parameters": {"binary_data_size": 80}}
SEED = {"name": "seed", "shape": [1], "datatype": "INT64", "data": [3]}


def floats(*values):
    return [{**ZEROS, "datatype": "FP32", "data": [*values, *[0.5] * (80 - len(values))]}]


MALFORMED = {
    "empty": b"",
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "null": b"null",
    "a list": b"[]",
    "no inputs": {"inputs": []},
    "inputs of another type": {"inputs": {"images": 1}},
    "three inputs": {"inputs": [ZEROS, SEED, SEED]},
    "twice": {"inputs": [ZEROS, ZEROS]},
    "only a seed": {"inputs": [SEED]},
    "unknown input": {"inputs": [{**ZEROS, "name": "x" * 1000}]},
    "unknown type": {"inputs": [{**ZEROS, "datatype": "FP64"}]},
    "bytes": {"inputs": [{**ZEROS, "datatype": "BYTES", "data": ["a"] * 80}]},
    "other shape": {"inputs": [{**ZEROS, "shape": [1, 1, 10, 8]}]},
    "flat": {"inputs": [{**ZEROS, "shape": [80]}]},
    "huge shape": {"inputs": [{**ZEROS, "shape": [2**62, 2**62, 8, 10]}]},
    "negative shape": {"inputs": [{**ZEROS, "shape": [-1, 1, 8, 10]}]},
    "shape of text": {"inputs": [{**ZEROS, "shape": ["1", 1, 8, 10]}]},
    "shape beyond all": {"inputs": [{**ZEROS, "shape": [10**40, 1, 8, 10]}]},
    "many dimensions": {"inputs": [{**ZEROS, "shape": [1] * 1000 + [80]}]},
    "no rows": {"inputs": [{**ZEROS, "shape": [0, 1, 8, 10], "data": []}]},
    "too few numbers": {"inputs": [{**ZEROS, "data": [0] * 79}]},
    "ragged": {"inputs": [{**ZEROS, "data": [[0], [0, 1]]}]},
    "text": {"inputs": [{**ZEROS, "data": ["0"] * 80}]},
    "nulls": {"inputs": [{**ZEROS, "data": [None] * 80}]},
    "objects": {"inputs": [{**ZEROS, "data": [{}] * 80}]},
    "booleans": {"inputs": [{**ZEROS, "data": [True] * 80}]},
    "fractions as bytes": {"inputs": [{**ZEROS, "data": [0.7] * 80}]},
    "over 255": {"inputs": [{**ZEROS, "data": [256] * 80}]},
    "under 0": {"inputs": [{**ZEROS, "data": [-1] * 80}]},
    "huge numbers": {"inputs": [{**ZEROS, "data": [10**30] * 80}]},
    "not in [0, 1]": {"inputs": floats(2.0)},
    "too large for a float": {"inputs": floats(1e300)},
    "NaN": b'{"inputs": [{"name": "images", "shape": [1], "datatype": "FP32", "data": [NaN]}]}',
    "seeds of other length": {"inputs": [ZEROS, {**SEED, "shape": [2], "data": [1, 2]}]},
    "seed of two dimensions": {"inputs": [ZEROS, {**SEED, "shape": [1, 1]}]},
    "seed beyond 64 bits": {"inputs": [ZEROS, {**SEED, "data": [2**63]}]},
    "fractional seed": {"inputs": [ZEROS, {**SEED, "data": [0.5]}]},
    "unknown output": {"inputs": [ZEROS], "outputs": [{"name": "prob"}]},
    "number as id": {"inputs": [ZEROS], "id": 7},
    "no data": {"inputs": [{**ZEROS, "data": None}]},
    "bytes that are not there": binary({"inputs": [BYTES]}, b"\0" * 79),
    "bytes left": binary({"inputs": [BYTES]}, b"\0" * 81),
    "size of text": binary(
        {"inputs": [{**BYTES, "parameters": {"binary_data_size": "80"}}]}, b"\0" * 80
    ),
    "negative size": binary(
        {"inputs": [{**BYTES, "parameters": {"binary_data_size": -80}}]}, b"\0" * 80
    ),
    "half a float": binary(
        {"inputs": [{**BYTES, "datatype": "FP32", "parameters": {"binary_data_size": 81}}]},
        b"\0" * 81,
    ),
    "NaN in binary": binary(
        {"inputs": [{**BYTES, "datatype": "FP32", "parameters": {"binary_data_size": 320}}]},
        b"\xff" * 320,
    ),
    "a header beyond the body": binary({"inputs": [ZEROS]}, length=10**6),
    "a header of text": (b"{}", {"Inference-Header-Content-Length": "many"}),
    "a negative header": (b"{}", {"Inference-Header-Content-Length": "-1"}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_requests_get_a_sentence_and_harm_no_neighbour(running, guard, images, case):
    content = MALFORMED[case]
    content, headers = content if isinstance(content, tuple) else (content, {})
    seed = {"name": "seed", "shape": [60], "datatype": "INT64", "data": list(range(60))}
    good = document(images)
    good["inputs"].append(seed)
    bad, reply, second = in_threads(
        [
            lambda: running.infer(content, headers),
            lambda: running.infer(good),
            lambda: running.infer(good),
        ]
    )
    assert bad.refuses(400)
    offline = guard.predict(images, seeds=torch.arange(60))
    for neighbour in (reply, second):
        assert neighbour.status == 200
        assert neighbour.json["outputs"][0]["data"] == offline.label.tolist()
        assert neighbour.json["outputs"][3]["data"] == pytest.approx(
            offline.score.tolist(), abs=1e-5
        )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/repository/models/guard/load", 404),
        ("POST", "/v2/repository/models/guard/unload", 404),
        ("POST", "/v2/repository/index", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("GET", "/v2/models/guard/infer", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/../../etc/passwd", 404),
    ],
)
def test_there_is_nothing_else(running, method, path, status):
    assert running.ask(method, path).refuses(status)
    assert running.service.ready


def test_cloud_events_are_nothing_special(running, images):
    headers = {"ce-id": "1", "ce-source": "x", "ce-type": "y", "ce-specversion": "1.0"}
    reply = running.infer(document(images), headers)
    assert reply.status == 200
    assert not [name for name in reply.headers if name.lower().startswith("ce-")]
    assert "outputs" in reply.json


def test_the_page_and_every_answer_say_that_an_attack_evades(running):
    api = running.ask("GET", "/openapi.json").json
    posts = [what["post"] for what in api["paths"].values() if "post" in what]
    assert len(posts) == 2
    for what in posts:
        assert "evades" in what["description"]
    page = running.ask("GET", "/docs").body.decode()
    assert "evades" in page
    assert all(path in page for path in api["paths"])
    assert "<script" not in page
    assert "https://" not in page
