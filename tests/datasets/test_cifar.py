from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from mixup_inference import InputError
from mixup_inference.datasets import DATASETS, DatasetEntry, load_dataset
from mixup_inference.datasets.cifar import CIFAR10, CIFAR100, CIFAR100_COARSE
from mixup_inference.datasets.download import RemoteFile
from mixup_inference.datasets.readers import records
from mixup_inference.errors import DownloadError, MissingDataError
from mixup_inference.utils.progress import SILENT

EACH = pytest.mark.parametrize(
    "cifar", [CIFAR10, CIFAR100, CIFAR100_COARSE], ids=["cifar10", "cifar100", "coarse"]
)


def as_python(binary, label_bytes):
    """The same batch in the Python layout."""
    table = np.frombuffer(binary, np.uint8).reshape(-1, label_bytes + 3072)
    names = ["labels"] if label_bytes == 1 else ["coarse_labels", "fine_labels"]
    batch = {name: table[:, i].tolist() for i, name in enumerate(names)}
    batch |= {"data": table[:, label_bytes:].copy(), "batch_label": "training batch 1 of 5"}
    return pickle.dumps(batch, protocol=2)


def small(cifar, root, layout="binary", per_file=12, classes=4):
    """A data set in one of the official layouts, a few records to a file, and how to read it."""
    shape = cifar.binary if layout == "binary" else cifar.python
    folder = root / shape.folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    sums, tables = {}, {}
    for name in (*cifar.train, *cifar.test):
        table = rng.integers(0, 256, (per_file, cifar.label_bytes + 3072), dtype=np.uint8)
        table[:, : cifar.label_bytes] = rng.integers(0, classes, (per_file, cifar.label_bytes))
        content = table.tobytes()
        sums[name] = hashlib.md5(content, usedforsecurity=False).hexdigest()
        tables[name] = table
        content = content if layout == "binary" else as_python(content, cifar.label_bytes)
        (folder / (name + shape.suffix)).write_bytes(content)
    tiny = replace(
        cifar,
        train={name: sums[name] for name in cifar.train},
        test={name: sums[name] for name in cifar.test},
    )
    return tiny, tables


@EACH
@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("where", ["root", "folder", "archive in root", "archive"])
def test_it_is_read_from_wherever_it_is(tmp_path, cifar, layout, where):
    tiny, tables = small(cifar, tmp_path, layout)
    names = cifar.binary if layout == "binary" else cifar.python
    root = tmp_path / names.folder if where == "folder" else tmp_path
    if "archive" in where:
        with tarfile.open(tmp_path / names.archive, "w:gz") as tar:
            tar.add(tmp_path / names.folder, names.folder)
        (tmp_path / names.folder).rename(tmp_path / "gone")
        root = tmp_path / names.archive if where == "archive" else tmp_path
    assert tiny.place(root) is not None
    data = tiny.load(root)
    assert len(data.train) == 12 * len(cifar.train)
    assert len(data.test) == 12
    assert data.train.class_names == cifar.names
    record = tables[[*cifar.test][-1]][-1]
    assert int(data.test.labels[-1]) == record[cifar.label]
    pixels = torch.from_numpy(record[cifar.label_bytes :].copy()).view(3, 32, 32)
    assert torch.equal(data.test.images[-1], pixels)
    positions = torch.cat([data.train.index, data.test.index])
    assert positions.tolist() == list(range(len(data.train) + 12))


def test_every_class_has_a_name():
    for cifar, count in ((CIFAR10, 10), (CIFAR100, 100), (CIFAR100_COARSE, 20)):
        assert len(set(cifar.names)) == len(cifar.names) == count
        assert sorted(cifar.names) == list(cifar.names)  # that is how they were numbered


def test_what_is_missing_truncated_or_altered(tmp_path):
    with pytest.raises(MissingDataError, match=r"Put the official cifar-10-binary\.tar\.gz or"):
        load_dataset("cifar10", tmp_path, download=False)
    tiny, _ = small(CIFAR10, tmp_path)
    path = tmp_path / CIFAR10.binary.folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-3073], bytes([whole[0] ^ 1]) + whole[1:], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"data_batch_3\.bin of CIFAR-10 is not the official"):
            tiny.load(tmp_path)
    (tmp_path / "x").mkdir()
    archive = tmp_path / "x" / CIFAR10.binary.archive
    path.write_bytes(whole)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(path.parent, CIFAR10.binary.folder)
    packed = archive.read_bytes()
    tiny.load(tmp_path / "x")
    damaged = packed[: len(packed) // 2] + b"\0" * 99 + packed[len(packed) // 2 + 99 :]
    with tarfile.open(tmp_path / "linked.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(f"{CIFAR10.binary.folder}/data_batch_1.bin")
        member.type, member.linkname = tarfile.SYMTYPE, "data_batch_1.bin"
        tar.addfile(member)
    linked = (tmp_path / "linked.tar.gz").read_bytes()
    for content in (b"<html>", b"", packed[: len(packed) // 2], damaged, linked):
        archive.write_bytes(content)
        with pytest.raises(InputError, match="not the official archive"):
            tiny.load(tmp_path / "x")


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_an_archive_under_another_name_is_known_by_its_content(tmp_path, layout):
    tiny, _ = small(CIFAR10, tmp_path / "here", layout)
    folder = tiny.binary.folder if layout == "binary" else tiny.python.folder
    with tarfile.open(tmp_path / "download", "w:gz") as tar:
        tar.add(tmp_path / "here" / folder, folder)
    assert len(tiny.load(tmp_path / "download").train) == 60
    assert CIFAR100.place(tmp_path / "download") is None


class Evil:
    def __reduce__(self):
        return (print, ("executed!",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": Evil(), "labels": [1]}),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": Evil()}, protocol=2),
        pickle.dumps(getattr),
        b"cos\nsystem\n(S'echo executed!'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [[0, 1]]}, protocol=2),
        pickle.dumps({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}, protocol=2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1, 2]}, protocol=2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 256]}, protocol=2),
        b"",
        b"<html>",
        pickle.dumps({"labels": [1]})[:-3],
    ],
)
def test_a_pickle_cannot_do_anything(content, capfd):
    with pytest.raises(InputError, match="not a batch of CIFAR's Python layout"):
        records(content)
    assert "executed" not in capfd.readouterr().out


def test_python_2_files_are_read():
    """A pickle as Python 2 and NumPy 1 wrote it: byte strings for keys and for the array."""
    array = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8)
    out = io.BytesIO()
    out.write(b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n")
    out.write(b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86")
    out.write(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff")
    out.write(b"\xff\xff\xffK\x00tb\x89T" + len(array).to_bytes(4, "little"))
    out.write(array.tobytes() + b"tbU\x06labels](K\x07K\x09eu.")
    rows = np.frombuffer(records(out.getvalue()), np.uint8).reshape(2, 3073)
    assert rows[:, 0].tolist() == [7, 9]
    assert np.array_equal(rows[:, 1:].ravel(), array)


def test_without_any_network_the_error_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm
    nowhere = RemoteFile("cifar-10-binary.tar.gz", ("http://127.0.0.1:9/x",), 10, "0" * 32)
    monkeypatch.setattr("mixup_inference.datasets.download.BACK_OFF", 0.0)
    with pytest.raises(DownloadError) as caught:
        replace(CIFAR10, remote=nowhere).download(tmp_path / "root", SILENT)
    text = str(caught.value)
    for part in (
        "http://127.0.0.1:9/x",
        "npm",
        "cifar-10-batches-py",
        str(tmp_path / "root"),
        "--data-root",
    ):
        assert part in text
    assert not (tmp_path / "root" / "cifar-10-binary.tar.gz").exists()


def test_a_download_happens_once_and_only_when_needed(tmp_path, monkeypatch):
    tiny, _ = small(CIFAR10, tmp_path / "away")
    calls = []

    def download(root, progress):
        calls.append(root)
        small(CIFAR10, root)

    class Source:
        title, shape, place, load = "tiny", tiny.shape, tiny.place, tiny.load

    Source.download = staticmethod(download)
    monkeypatch.setitem(DATASETS._entries, "cifar10", DatasetEntry("cifar10", Source()))
    assert len(load_dataset("cifar10", tmp_path / "root").train) == 60
    load_dataset("cifar10", tmp_path / "root")
    assert calls == [tmp_path / "root"]


@pytest.mark.parametrize(
    ("name", "classes"), [("cifar10", 10), ("cifar100", 100), ("cifar100-coarse", 20)]
)
def test_the_real_one_if_it_is_there(name, classes):
    try:
        data = load_dataset(name, download=False)
    except MissingDataError as error:
        pytest.skip(str(error))
    assert data.train.images.shape == (50000, 3, 32, 32)
    assert torch.bincount(data.test.labels).tolist() == [10000 // classes] * classes
    assert data.train.classes == classes
