from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from mixup_inference import InputError
from mixup_inference.datasets import (
    data_root,
    experiment_points,
    load_dataset,
    random_order,
    split,
)
from mixup_inference.datasets.cifar import CIFAR10, CIFAR100


def test_digits_are_all_there():
    data = load_dataset("digits").train
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.classes == 10
    assert float(data.pixels.min()) == 0
    assert float(data.pixels.max()) == 1
    assert torch.bincount(data.labels).min() > 170


def test_splits_are_disjoint_complete_seeded_and_random():
    data = load_dataset("digits").train
    sizes = {"test": 500, "tuning": 200, "calibration": 100}
    parts = split(data, sizes, seed=0, rest="train")
    assert {name: len(part) for name, part in parts.items()} == sizes | {"train": 997}
    together = torch.cat([part.index for part in parts.values()])
    assert sorted(together.tolist()) == list(range(1797))
    for part in parts.values():
        assert torch.equal(part.images, data.images[part.index])
        assert torch.equal(part.labels, data.labels[part.index])
    again, other = (split(data, sizes, seed=s, rest="train")["test"] for s in (0, 1))
    assert torch.equal(again.index, parts["test"].index)
    assert not torch.equal(other.index, parts["test"].index)
    assert 0.45 < parts["test"].index.double().mean() / 1797 < 0.55


def test_random_order_is_a_permutation():
    assert sorted(random_order(1000, seed=3, name="x").tolist()) == list(range(1000))


def test_errors():
    with pytest.raises(InputError, match="ask for 1797 points"):
        split(load_dataset("digits").train, {"test": 1797}, seed=0, rest="train")
    with pytest.raises(InputError, match="did you mean 'digits'"):
        load_dataset("digit")


def small(layout, root, per_file=12, classes=4):
    """A data set in the official layout, a few records to a file, and the layout to read it."""
    folder = root / layout.folder
    folder.mkdir(parents=True)
    (folder / layout.names).write_text("\n".join(f"class{i}" for i in range(classes)) + "\n\n")
    rng = np.random.default_rng(0)
    sums = {}
    for file in (*layout.train, *layout.test):
        records = rng.integers(0, 256, (per_file, layout.label_bytes + 3072), dtype=np.uint8)
        records[:, : layout.label_bytes] = rng.integers(0, classes, (per_file, layout.label_bytes))
        (folder / file).write_bytes(records.tobytes())
        sums[file] = hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest()
    return replace(
        layout,
        train={file: sums[file] for file in layout.train},
        test={file: sums[file] for file in layout.test},
    )


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
@pytest.mark.parametrize("where", ["root", "folder", "archive in root", "archive"])
def test_cifar_is_read_from_wherever_it_is(tmp_path, layout, where):
    tiny = small(layout, tmp_path)
    root = tmp_path / layout.folder if where == "folder" else tmp_path
    if "archive" in where:
        with tarfile.open(tmp_path / layout.archive, "w:gz") as tar:
            tar.add(tmp_path / layout.folder, layout.folder)
        (tmp_path / layout.folder).rename(tmp_path / "gone")
        root = tmp_path / layout.archive if where == "archive" else tmp_path
    data = tiny.load(root)
    assert len(data.train) == 12 * len(layout.train)
    assert len(data.test) == 12
    assert data.train.class_names == ("class0", "class1", "class2", "class3")
    record = np.frombuffer(next(tmp_path.glob(f"*/{[*layout.test][-1]}")).read_bytes(), np.uint8)
    record = record[-(layout.label_bytes + 3072) :]
    assert int(data.test.labels[-1]) == record[layout.label_bytes - 1]
    pixels = torch.from_numpy(record[layout.label_bytes :].copy()).view(3, 32, 32)
    assert torch.equal(data.test.images[-1], pixels)
    positions = torch.cat([data.train.index, data.test.index])
    assert positions.tolist() == list(range(len(data.train) + 12))


def test_cifar_that_is_missing_truncated_or_altered(tmp_path):
    with pytest.raises(InputError, match=r"Put the official cifar-10-binary\.tar\.gz"):
        load_dataset("cifar10", tmp_path)
    tiny = small(CIFAR10, tmp_path)
    path = tmp_path / CIFAR10.folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-3073], bytes([whole[0] ^ 1]) + whole[1:], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"data_batch_3\.bin of CIFAR-10 is not the official"):
            tiny.load(tmp_path)
    (tmp_path / "x").mkdir()
    for content in (b"<html>", b""):
        (tmp_path / "x" / CIFAR10.archive).write_bytes(content)
        with pytest.raises(InputError, match="not the official archive"):
            tiny.load(tmp_path / "x")


def test_points_of_an_official_division_come_from_its_test_set(tmp_path):
    data = small(CIFAR10, tmp_path).load(tmp_path)
    parts = experiment_points(data, {"test": 5, "tuning": 3}, seed=0)
    assert {n: len(part) for n, part in parts.items()} == {"test": 5, "tuning": 3, "train": 60}
    assert not set(parts["test"].index.tolist()) & set(parts["tuning"].index.tolist())
    assert min(parts["test"].index.min(), parts["tuning"].index.min()) >= 60
    assert len(experiment_points(data, {"test": 12}, seed=0)["test"]) == 12  # all of it
    with pytest.raises(InputError, match="ask for 13 points"):
        experiment_points(data, {"test": 13}, seed=0)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_real_cifar_if_it_is_there(name, classes):
    try:
        data = load_dataset(name)
    except InputError as error:
        pytest.skip(str(error))
    assert data.train.images.shape == (50000, 3, 32, 32)
    assert torch.bincount(data.test.labels).tolist() == [10000 // classes] * classes
    assert data.train.classes == classes


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("MIXUP_INFERENCE_DATA", "somewhere")
    assert str(data_root()) == "somewhere"
    assert data_root(tmp_path) == tmp_path
    monkeypatch.delenv("MIXUP_INFERENCE_DATA")
    assert str(data_root()) == "data"
