from __future__ import annotations

import gzip
import hashlib
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mixup_inference.datasets import data_root
from mixup_inference.datasets import fashion_mnist as module
from mixup_inference.datasets.fashion_mnist import CLASSES, FASHION_MNIST, FashionMnist
from mixup_inference.errors import DownloadError, InputError, MissingDataError
from mixup_inference.utils.progress import SILENT


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Without what may be installed on this machine; the folder stands for Debian's."""
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "debian")
    return tmp_path / "debian"


def tiny() -> tuple[FashionMnist, dict[str, bytes], dict[str, np.ndarray]]:
    """A small data set in the official layout: its description, contents and arrays."""
    rng = np.random.default_rng(0)
    described, contents, arrays = [], {}, {}
    for file in FASHION_MNIST.files:
        count = 30 if "train" in file.name else 20
        small = replace(file, shape=(count, *file.shape[1:]))
        array = rng.integers(0, 256 if "images" in file.name else 10, small.shape, dtype=np.uint8)
        content = small.header + array.tobytes()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        described.append(replace(small, md5=md5))
        contents[file.name], arrays[file.name] = content, array
    return replace(FASHION_MNIST, files=tuple(described)), contents, arrays


def put(folder: Path, contents: dict[str, bytes], *, compressed=()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if name in compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("where", ["fashion-mnist", "FashionMNIST/raw", ".", "../debian"])
@pytest.mark.parametrize("form", ["plain", "gz", "mixed"])
def test_it_is_read_from_wherever_it_is(tmp_path, alone, where, form):
    source, contents, arrays = tiny()
    root = tmp_path / "root"
    root.mkdir()
    assert source.place(root) is None
    names = [*contents]
    put(root / where, contents, compressed={"plain": [], "gz": names, "mixed": names[:1]}[form])
    assert source.place(root).resolve() == (root / where).resolve()
    data = source.load(root)
    for part, name, count in ((data.train, "train", 30), (data.test, "t10k", 20)):
        assert part.images.dtype == torch.uint8
        assert part.images.shape == (count, 1, 28, 28)
        assert np.array_equal(part.images[:, 0].numpy(), arrays[f"{name}-images-idx3-ubyte"])
        assert part.labels.tolist() == arrays[f"{name}-labels-idx1-ubyte"].tolist()
        assert part.labels.dtype == torch.int64
        assert part.class_names == CLASSES
    assert torch.cat([data.train.index, data.test.index]).tolist() == list(range(50))


def test_the_own_folder_comes_before_the_others(tmp_path, alone):
    source, contents, _ = tiny()
    root = tmp_path / "root"
    for folder in (alone, root, root / "FashionMNIST/raw", root / "fashion-mnist"):
        put(folder, contents)
        assert source.place(root) == folder


def test_three_files_are_not_enough(tmp_path, alone):
    source, contents, _ = tiny()
    put(tmp_path / "fashion-mnist", dict([*contents.items()][:3]))
    assert source.place(tmp_path) is None
    with pytest.raises(MissingDataError) as error:
        source.load(tmp_path)
    text = str(error.value)
    assert all(name in text for name in contents)
    assert f"into {tmp_path / 'fashion-mnist'}" in text
    assert "dataset-fashion-mnist" in text


def flawed(content: bytes, header: int) -> dict[str, bytes]:
    last, pixel = content[-1:], content[header : header + 1]
    return {
        "truncated": content[:-1],
        "too long": content + b"\0",
        "altered": content[:-1] + bytes([last[0] ^ 1]),
        "another type": content[:2] + b"\x0d" + content[3:],
        "another count": content[:7] + bytes([content[7] - 1]) + content[8:],
        "shifted": content[:header] + content[header + 1 :] + pixel,
        "a page": b"<!doctype html>",
        "nothing": b"",
    }


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("which", range(4))
def test_files_that_are_not_official(tmp_path, alone, which, compressed):
    source, contents, _ = tiny()
    file = source.files[which]
    said = {
        "truncated": "bytes and has only",
        "too long": "bytes and has more",
        "altered": f"MD5 of its content is .* and not {file.md5}",
        "another type": "begins with 00 00 0d .* and not with 00 00 08",
        "another count": "begins with 00 00 08 .* and not with 00 00 08",
        "shifted": "MD5 of its content",
        "a page": "has only 15",
        "nothing": "has only 0",
    }
    for kind, content in flawed(contents[file.name], len(file.header)).items():
        names = [file.name] if compressed else []
        put(tmp_path, contents | {file.name: content}, compressed=names)
        with pytest.raises(InputError, match=rf"{file.name}\S* is not the official.*{said[kind]}"):
            source.load(tmp_path)
        (tmp_path / file.name).unlink(missing_ok=True)
    put(tmp_path, contents)
    (tmp_path / f"{file.name}.gz").unlink(missing_ok=True)
    source.load(tmp_path)  # and with the right one all is well again


@pytest.mark.parametrize("spoil", [lambda gz: gz[:-5], lambda gz: gz[:40], lambda gz: b"<html>"])
def test_compressed_files_that_cannot_be_unpacked(tmp_path, alone, spoil):
    source, contents, _ = tiny()
    name = "t10k-images-idx3-ubyte"
    put(tmp_path, contents, compressed=[name])
    path = tmp_path / f"{name}.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=r"cannot read .*t10k-images-idx3-ubyte\.gz \("):
        source.load(tmp_path)


def test_damage_inside_a_compressed_file(tmp_path, alone):
    source, contents, _ = tiny()
    name = "train-images-idx3-ubyte"
    put(tmp_path, contents, compressed=[name])
    path = tmp_path / f"{name}.gz"
    whole = path.read_bytes()
    for position in range(10, len(whole) - 8, len(whole) // 20):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with pytest.raises(InputError, match="Replace it"):
            source.load(tmp_path)


def test_a_bomb_is_unpacked_no_further_than_needed(tmp_path, alone):
    source, contents, _ = tiny()
    file = source.files[0]
    put(tmp_path, contents, compressed=[file.name])
    bomb = gzip.compress(contents[file.name] + bytes(100_000_000), compresslevel=1)
    (tmp_path / f"{file.name}.gz").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(InputError, match="has more"):
        source.load(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_download_brings_what_load_reads(tmp_path, alone, monkeypatch):
    source, contents, _ = tiny()
    put(tmp_path / "fashion-mnist", contents | {"train-labels-idx1-ubyte": b"damaged"})
    asked = []

    def fetch(file, folder, *, progress):
        asked.append(file)
        content = gzip.compress(contents[file.name.removesuffix(".gz")])
        (folder / file.name).write_bytes(content)

    monkeypatch.setattr(module, "fetch", fetch)
    source.download(tmp_path, SILENT)
    assert len(source.load(tmp_path).train) == 30  # although a damaged plain file is there
    assert [file.name for file in asked] == [f"{name}.gz" for name in contents]
    for file in asked:
        assert file.urls == (
            f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file.name}",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/" + file.name,
        )
    assert sum(file.size for file in asked) == 30_878_645


def test_a_failed_download_says_how_to_do_without(tmp_path, monkeypatch):
    def fetch(file, folder, *, progress):
        raise DownloadError(f"{file.name} could not be downloaded")

    monkeypatch.setattr(module, "fetch", fetch)
    with pytest.raises(DownloadError, match=r"(?s)not be downloaded\nWithout a network: Put train"):
        FASHION_MNIST.download(tmp_path, SILENT)


def test_the_description_is_consistent():
    assert len(CLASSES) == 10
    for images, labels in (FASHION_MNIST.files[:2], FASHION_MNIST.files[2:]):
        assert images.shape == (*labels.shape, 28, 28)
        assert images.size == 16 + math.prod(images.shape)
        assert labels.size == 8 + labels.shape[0]
        assert images.header[:4] == bytes([0, 0, 8, 3])
        assert labels.header == bytes([0, 0, 8, 1]) + labels.shape[0].to_bytes(4, "big")
    sums = {file.md5 for file in FASHION_MNIST.files}
    assert len(sums | {file.packed_md5 for file in FASHION_MNIST.files}) == 8


def test_the_real_fashion_mnist_if_it_is_there():
    try:
        data = FASHION_MNIST.load(data_root())
    except MissingDataError as error:
        pytest.skip(str(error))
    assert data.train.images.shape == (60000, 1, 28, 28)
    assert torch.bincount(data.train.labels).tolist() == [6000] * 10
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    # The first test image is an ankle boot, and the mean of all training pixels is well known.
    assert data.test.class_names[data.test.labels[0]] == "Ankle boot"
    assert float(data.train.images.double().mean()) / 255 == pytest.approx(0.2860, abs=5e-5)
