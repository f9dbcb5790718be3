"""Archives write nothing, and neither they nor images nor weights take more than they should."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import time
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mixup_inference import InputError, create_model, load_checkpoint, load_weights
from mixup_inference.datasets.cifar import CIFAR10
from mixup_inference.datasets.image_folder import load_folder
from mixup_inference.datasets.readers import first_names, read_members
from mixup_inference.reporting.figures.adaptive import pixels
from mixup_inference.utils.io import write_tensors
from security.hostile import tar, tar_member
from security.memory import bounded

FOLDER = CIFAR10.binary.folder
GOOD = f"{FOLDER}/data_batch_1.bin"
LIMITS = {"largest": 1 << 20, "most": 4 << 20}
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE)
OTHERS = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE)


def snapshot(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("packed", [False, True])
def test_members_that_lead_elsewhere_are_not_followed(tmp_path, packed):
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    members = [
        tar_member("../outside", b"x"),
        tar_member(f"{FOLDER}/../../outside", b"x"),
        tar_member(str(tmp_path / "outside"), b"x"),
        *(tar_member(GOOD, type=kind, linkname=str(secret)) for kind in LINKS),
        *(tar_member(GOOD, type=kind, devmajor=1, devminor=5) for kind in OTHERS),
    ]
    content = tar(*members)
    archive = tmp_path / "archive"
    archive.write_bytes(gzip.compress(content) if packed else content)
    before = snapshot(tmp_path)
    names = [member.name for member, _ in members]
    assert read_members(archive, {GOOD}, **LIMITS) == {}
    assert read_members(archive, names, **LIMITS) == dict.fromkeys(names[:3], b"x")
    with pytest.raises(InputError, match="it is not the official archive"):
        CIFAR10.load(archive)
    assert snapshot(tmp_path) == before


def test_what_is_read_is_what_tar_would_have_unpacked(tmp_path):
    rng = np.random.default_rng(0)
    contents = {f"{'d/' * i}{i}.bin": rng.bytes(int(rng.integers(0, 2000))) for i in range(30)}
    for layout in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        archive = tmp_path / "archive.tar.gz"
        with tarfile.open(archive, "w:gz", format=layout) as out:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(content), 1.5
                out.addfile(member, io.BytesIO(content))
            again = tarfile.TarInfo("0.bin")  # the later one counts
            again.size = 3
            out.addfile(again, io.BytesIO(b"new"))
        assert read_members(archive, contents, **LIMITS) == contents | {"0.bin": b"new"}
        assert "0.bin" in first_names(archive, 2, most=1 << 20)


@pytest.mark.parametrize(
    "content",
    [
        tar(tar_member(GOOD, size=8**11 - 1)),  # 8 GB that are not there
        tar(tar_member("other", size=8**11 - 1), tar_member(GOOD, b"x")),
        tar(tar_member(GOOD, b"abc"))[:513],
        tar(tar_member(GOOD, b"abc")).replace(b"ustar", b"rates"),  # the checksum is wrong
        b"\x01" * 2048,
        gzip.compress(tar(tar_member(GOOD, b"abc")))[:-12],
    ],
    ids=range(6),
)
def test_archives_that_lie(tmp_path, content):
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    with bounded(1 << 28), pytest.raises(InputError):
        read_members(archive, {GOOD}, **LIMITS)


@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"S"])
@pytest.mark.parametrize("size", [-512, -1, 2**40])
def test_sizes_that_no_octal_digits_can_say(tmp_path, kind, size):
    """Which older versions of Python's tarfile may go back and forth on (CVE-2025-8194)."""
    header = bytearray(tarfile.TarInfo(GOOD).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = kind
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    archive = tmp_path / "archive"
    archive.write_bytes(bytes(header) + bytes(2048))
    with bounded(1 << 28), pytest.raises(InputError, match="is no number"):
        read_members(archive, {GOOD}, **LIMITS)


def test_a_packed_bomb_is_unpacked_no_further_than_told(tmp_path):
    archive, start = tmp_path / "bomb.tar.gz", time.perf_counter()
    zeros = gzip.compress(bytes(1 << 24), 9)
    for member in (tar_member("x", size=8**11 - 1), tar_member("x", type=b"x", size=8**11 - 1)):
        header = gzip.compress(member[0].tobuf(tarfile.GNU_FORMAT))
        archive.write_bytes(header + zeros * 500)  # 8 GB
        with bounded(1 << 28), pytest.raises(InputError, match="holds more than"):
            read_members(archive, {GOOD}, **LIMITS)
    assert time.perf_counter() - start < 5


def test_a_torch_file_that_unpacks_to_more_than_it_is(tmp_path):
    torch.save({"weight": torch.zeros(1 << 20), "bias": torch.zeros(2)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for member in plain.infolist():
            bomb.writestr(member.filename, plain.read(member))
    with pytest.raises(InputError, match="neither safetensors nor a torch file"):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "bomb.pt")
    with pytest.raises(InputError, match="does not fit the model"):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "plain.pt")


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape=(2,), dtype="F32", offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = bytes(8)
LIES = {
    "length beyond the file": safetensors({"a": entry()}, EIGHT, length=2**20),
    "huge length": safetensors({"a": entry()}, EIGHT, length=2**63),
    "all of the length": safetensors({"a": entry()}, EIGHT, length=2**64 - 1),
    "negative offset": safetensors({"a": entry(offsets=(-8, 0))}, EIGHT),
    "offsets the other way round": safetensors({"a": entry(offsets=(8, 0))}, EIGHT),
    "offsets beyond the file": safetensors({"a": entry(offsets=(0, 2**40))}, EIGHT),
    "another shape": safetensors({"a": entry((3,))}, EIGHT),
    "a shape that overflows": safetensors({"a": entry((2**62, 2**62))}, EIGHT),
    "negative shape": safetensors({"a": entry((-2,))}, EIGHT),
    "unknown type": safetensors({"a": entry(dtype="F31")}, EIGHT),
    "overlapping": safetensors({"a": entry(), "b": entry()}, EIGHT),
    "a hole": safetensors({"a": entry(offsets=(8, 16))}, EIGHT * 2),
    "NaN for a name": safetensors(b'{NaN: {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}'),
    "deep": safetensors(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "no header": safetensors(b"{"),
    "a list": safetensors([1]),
    "metadata that is no text": safetensors({"__metadata__": {"json": 1}, "a": entry()}, EIGHT),
    "metadata nested deeply": safetensors(
        {"__metadata__": {"json": "[" * 100_000}, "a": entry()}, EIGHT
    ),
    "half a character": safetensors(b'{"\xff": {}}'),
}


@pytest.mark.parametrize("lie", LIES)
def test_safetensors_that_lie(tmp_path, lie):
    path = tmp_path / "model.safetensors"
    path.write_bytes(LIES[lie])
    with bounded(1 << 28):
        with pytest.raises(InputError):
            load_checkpoint(path)
        with pytest.raises(InputError):
            load_weights(torch.nn.Linear(2, 2), path)


@pytest.mark.parametrize(
    "lie", [{"num_classes": 10**9}, {"channels": 10**8}, {"width": 10**5}, {"width": 10**18}]
)
def test_a_header_that_asks_for_a_giant_gets_nothing(tmp_path, lie):
    path = tmp_path / "model.safetensors"
    small = create_model("small_cnn", 2, channels=1, width=1)
    tensors = {f"model.{name}": tensor for name, tensor in small.state_dict().items()}
    write_tensors(path, tensors, {"format": 1, "architecture": small.config | lie})
    with bounded(1 << 28), pytest.raises(InputError, match=r"does not fit|not here"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "weight",
    [
        torch.ones(2, 2).to(torch.float8_e4m3fn),
        torch.ones(2, 2, device="meta"),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
        torch.zeros(1).expand(2, 2),
        torch.zeros(1).expand(10**6, 10**6),
    ],
    ids=["float8", "meta", "complex", "quantized", "expanded", "expanded giant"],
)
def test_strange_tensors(tmp_path, weight):
    torch.save({"weight": weight, "bias": torch.zeros(2)}, tmp_path / "w.pt")
    model = torch.nn.Linear(2, 2)
    try:
        with bounded(1 << 28):
            load_weights(model, tmp_path / "w.pt")
    except InputError:
        return
    assert torch.equal(model.weight, weight.float())


def bomb(width, height):
    """A valid PNG of one colour: a few bytes for each row of pixels."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(width + 1)) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_image_bombs_are_named_and_not_decoded(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "good.png")
    (tmp_path / "a" / "bomb.png").write_bytes(bomb(20_000, 20_000))
    with bounded(1 << 28), pytest.warns(UserWarning, match="bomb.png"):
        data = load_folder(tmp_path)
    assert len(data.train) == 2


def test_pictures_in_results_are_small_pngs():
    import base64

    for content in (bomb(5000, 5000), b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0"):
        with bounded(1 << 28), pytest.raises((InputError, OSError)):
            pixels(base64.b64encode(content).decode())


def test_a_folder_that_is_very_deep(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "good.png")
    chain = [tmp_path / "a"]
    for _ in range(1200):
        chain.append(chain[-1] / "d")
        chain[-1].mkdir()
    picture = chain[-1] / "deep.png"
    Image.new("L", (4, 4)).save(picture)
    try:
        assert len(load_folder(tmp_path).train) == 3
    finally:  # pytest could not remove it
        picture.unlink()
        for folder in chain[:0:-1]:
            folder.rmdir()


def test_a_file_that_is_larger_than_a_batch_is_not_read_whole(tmp_path, monkeypatch):
    folder = tmp_path / FOLDER
    folder.mkdir()
    tiny = replace(CIFAR10, train={"data_batch_1": "0"}, test={"test_batch": "0"})
    for name in ("data_batch_1.bin", "test_batch.bin"):
        with (folder / name).open("wb") as file:
            file.truncate(1 << 36)  # a file of holes: 64 GB
    monkeypatch.setattr("mixup_inference.datasets.cifar.LARGEST", 1 << 20)
    with bounded(1 << 28), pytest.raises(InputError, match="not the official file"):
        tiny.load(tmp_path)
