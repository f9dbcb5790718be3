"""Every data set that needs no download keeps the contract, those of a user's own too."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from mixup_inference import InputError
from mixup_inference.datasets import (
    DATASETS,
    SOURCES,
    Dataset,
    LabelledImages,
    Shape,
    as_dataset,
    load_dataset,
    shape_of,
)
from mixup_inference.experiments import parse_spec

MODULE = """
import numpy as np

def build():
    images = np.arange(6 * 3 * 4 * 4, dtype=np.uint8).reshape(6, 3, 4, 4)
    return (images, np.arange(6) % 3), (images[:3], np.array([2, 1, 0]))
"""
SPEC = """
name = "tiny"
title = "tiny"
[data]
name = "their_data:build"
test = 3
[network]
name = "small_cnn"
[models.m]
objective = "erm"
[[rows]]
title = "m"
model = "m"
"""


def ours():
    images = torch.rand(4, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    return Dataset(LabelledImages(images, torch.arange(4) % 2, torch.arange(4), ("cat", "dog")))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function by decorator, one by its place, and a folder of images."""
    (tmp_path / "their_data.py").write_text(MODULE)
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (number, 50, 100)).save(tmp_path / "images" / name / "1.png")
    monkeypatch.chdir(tmp_path)
    DATASETS.register("ours")(ours)
    DATASETS.load("their_data:build")
    yield
    for name in ("ours", "their_data:build"):
        DATASETS.remove(name)
    sys.modules.pop("their_data", None)


LOCAL = [*(n for n in DATASETS if n not in SOURCES), "ours", "their_data:build", "folder:images"]


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.usefixtures("own")
def test_contract(name):
    data = load_dataset(name)
    parts = [part for part in (data.train, data.test) if part is not None]
    for part in parts:
        assert part.images.ndim == 4
        assert part.pixels.dtype == torch.float32
        assert 0 <= float(part.pixels.min()) <= float(part.pixels.max()) <= 1
        assert part.labels.dtype == torch.int64
        assert 0 <= int(part.labels.min()) <= int(part.labels.max()) < part.classes
        assert len(part.images) == len(part.labels) == len(part.index)
        assert part.class_names == data.train.class_names
    positions = torch.cat([part.index for part in parts])
    assert positions.unique().numel() == len(positions)
    assert torch.equal(load_dataset(name).train.images, data.train.images)
    assert shape_of(name) == Shape.of(data)
    fitted = load_dataset(name, size=(6, 5), channels=3)
    assert fitted.train.images.shape[1:] == (3, 6, 5)
    assert shape_of(name, size=(6, 5), channels=3) == Shape.of(fitted)


def test_pairs_become_a_data_set():
    x, y = np.zeros((5, 1, 2, 2)), [0, 1, 2, 1, 0]
    data = as_dataset(((x, y), (x[:2], y[:2])))
    assert Shape.of(data) == Shape(5, 2, 1, (2, 2), 3)
    assert data.test.index.tolist() == [5, 6]
    assert data.train.images.dtype == torch.float32  # NumPy's default has 64 bits
    assert as_dataset((list(zip(x, y, strict=True)), None)).test is None
    for wrong, words in (
        (None, "a Dataset or a pair"),
        ((None, (x, y)), "a Dataset or a pair"),
        (((x - 1, y), None), "must lie in"),
        (((x, y[:3]), None), "3 labels for 5 images"),
        (((x, [0, 1, -2, 1, 0]), None), "label -2"),
    ):
        with pytest.raises(InputError, match=words):
            as_dataset(wrong)


def test_a_users_function_runs_only_if_that_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "their_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--allow-code"):
        load_dataset("their_data:build")
    with pytest.raises(InputError, match=r"data set 'their_data:build' is Python code"):
        parse_spec(SPEC)
    assert "their_data" not in sys.modules
    objective = SPEC.replace("their_data:build", "digits").replace("erm", "their_data:build")
    with pytest.raises(InputError, match=r"objective 'their_data:build' is Python code"):
        parse_spec(objective)
    try:
        assert parse_spec(SPEC, allow_code=True).data.name == "their_data:build"
        assert len(load_dataset("their_data:build").train) == 6
    finally:
        DATASETS.remove("their_data:build")
        sys.modules.pop("their_data", None)
