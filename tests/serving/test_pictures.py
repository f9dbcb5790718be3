from __future__ import annotations

import io
import struct
import zlib

import pytest
import torch
from PIL import Image

from mixup_inference.datasets.image_file import read_picture


def picture(pixels, kind="PNG", mode="L", side=None):
    image = Image.fromarray(pixels.numpy()).convert(mode)
    image = image if side is None else image.resize(side)
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def form(content, name="file", filename='; filename="p.png"'):
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
    return head.encode() + content + b"\r\n--b--\r\n", {
        "Content-Type": "multipart/form-data; boundary=b"
    }


def bomb(width, height, pixels):
    """A small PNG file whose header names so many pixels, and which has some black ones."""

    def chunk(name, content):
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(pixels // 8), 9)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


@pytest.mark.parametrize("as_form", [False, True])
@pytest.mark.parametrize(
    ("kind", "mode", "side"),
    [
        ("PNG", "L", None),
        ("PNG", "RGBA", (80, 64)),
        ("JPEG", "RGB", (31, 99)),
        ("WEBP", "RGB", None),
    ],
)
def test_a_picture_is_answered_as_the_library_does(
    running, guard, images, kind, mode, side, as_form
):
    content = picture(images[3, 0], kind, mode, side)
    body, headers = form(content) if as_form else (content, {"Content-Type": f"image/{kind}"})
    reply = running.ask("POST", "/classify?seed=-77", body, headers)
    assert reply.status == 200, reply.body
    row = torch.from_numpy(read_picture(content, (1, 8, 10)))[None]
    offline = guard.predict(row, seeds=torch.tensor([-77]))
    found = reply.json
    assert found["label"] == guard.class_names[int(offline.label)]
    assert found["undefended_label"] == guard.class_names[int(offline.undefended_label)]
    assert found["score"] == pytest.approx(float(offline.score), abs=1e-5)
    assert found["is_adversarial"] == bool(offline.is_adversarial)
    assert found["draws"] == int(offline.draws)
    assert found["probability"] == max(found["probabilities"].values())
    assert list(found["probabilities"]) == list(guard.class_names)


def test_the_content_type_of_curl_does_not_matter(running, images):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = running.ask("POST", "/classify", picture(images[0, 0]), headers)
    assert reply.status == 200


def test_fresh_draws_unless_a_seed_is_named(running, images):
    body = picture(images[0, 0])
    fresh = {running.ask("POST", "/classify", body).json["score"] for _ in range(4)}
    fixed = {running.ask("POST", "/classify?seed=5", body).json["score"] for _ in range(4)}
    assert (len(fresh), len(fixed)) == (4, 1)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (b"hello, this is no picture", {}),
        (b"\x89PNG\r\n\x1a\n rubbish", {"Content-Type": "image/png"}),
        (b"GIF89a" + bytes(100), {}),
        form(b"text"),
        form(b"only a field", filename=""),
        (b"--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}),
        (b"no parts", {"Content-Type": "multipart/form-data; boundary=b"}),
        (b"no boundary", {"Content-Type": "multipart/form-data"}),
        (b"x", {"Content-Type": "multipart/form-data; boundary=b; charset=nonsense"}),
    ],
)
def test_what_is_no_picture(running, body, headers):
    assert running.ask("POST", "/classify", body, headers).refuses(400)
    assert running.service.ready


@pytest.mark.parametrize("query", ["seed=x", "seed=", "seed=1.5", f"seed={2**63}", "seed=--1"])
def test_what_is_no_seed(running, images, query):
    assert running.ask("POST", f"/classify?{query}", picture(images[0, 0])).refuses(400)


def test_decompression_bombs_are_refused_by_their_header(running):
    """400 million pixels in 50 kB, and a header alone that names more: neither is decoded."""
    before = running.metric("process_resident_memory_bytes")
    for content in (bomb(20_000, 20_000, 400_000_000), bomb(2**31 - 1, 2**31 - 1, 64)):
        assert len(content) < running.service.limits.max_body
        reply = running.ask("POST", "/classify", content)
        assert reply.refuses(400)
        assert "pixels" in reply.json["error"]
    assert running.metric("process_resident_memory_bytes") - before < 50e6
