from __future__ import annotations

import importlib.util
import pickle
import shutil

import pytest
import torch

from guard.conftest import Columns
from mixup_inference import InputError
from mixup_inference.guard import Guard
from mixup_inference.utils import io

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxruntime", "onnxscript")),
    reason="onnxruntime or onnxscript not installed",
)
FILES = ("guard.toml", "model.safetensors", "pool.safetensors")


def same_answers(one, two, images):
    seeds = torch.arange(len(images))
    a, b = (guard.predict(images, seeds=seeds) for guard in (one, two))
    assert torch.equal(a.label, b.label)
    assert torch.allclose(a.score, b.score, atol=1e-5)
    assert torch.equal(a.is_adversarial, b.is_adversarial)


def test_a_saved_guard_gives_the_same_answers_elsewhere(saved, points, tmp_path, monkeypatch):
    guard, folder = saved
    copied = shutil.copytree(folder, tmp_path / "copied")
    monkeypatch.setattr(pickle, "Unpickler", None)  # nothing of it may be a pickle
    monkeypatch.setattr(pickle, "loads", None)
    found = Guard.load(copied)
    same_answers(guard, found, points[0][:60])
    assert found.calibration == guard.calibration
    assert found.settings == guard.settings
    assert found.class_names == guard.class_names
    assert found.pool.images.dtype == torch.uint8
    assert found.calibration.data == "noise"
    assert found.calibration.date


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "empty"])
def test_a_damaged_folder_is_refused(saved, tmp_path, name, damage):
    folder = shutil.copytree(saved[1], tmp_path / "damaged")
    path = folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        half = len(content) // 2
        other = bytes([content[half] ^ 1])
        changed = {
            "cut": content[:half],
            "empty": b"",
            "changed": content[:half] + other + content[half + 1 :],
        }
        path.write_bytes(changed[damage])
    with pytest.raises(InputError):
        Guard.load(folder)


def test_a_threshold_changed_by_hand_is_refused(saved, tmp_path):
    folder = shutil.copytree(saved[1], tmp_path / "edited")
    text = (folder / "guard.toml").read_text()
    edited = text.replace("threshold = ", "threshold = 1")
    assert edited != text
    (folder / "guard.toml").write_text(edited)
    with pytest.raises(InputError, match="was changed after it was written"):
        Guard.load(folder)


def test_files_of_another_guard_are_refused(saved, network, pool, points, tmp_path):
    other = Guard.fit(network, pool, points[0][:100], draws=6, per_class=5)
    other.save(tmp_path / "other")
    folder = shutil.copytree(saved[1], tmp_path / "mixed")
    shutil.copy(tmp_path / "other" / "pool.safetensors", folder)
    with pytest.raises(InputError, match="belongs to another guard"):
        Guard.load(folder)


@pytest.mark.parametrize("value", [2, "x", None])
def test_other_formats_are_refused(saved, tmp_path, value):
    folder = shutil.copytree(saved[1], tmp_path / "format")
    document = io.parse_toml((folder / "guard.toml").read_text(), "guard.toml")
    document = {key: one for key, one in document.items() if key != "checksum"}
    (folder / "guard.toml").write_text(io.to_toml(io.add_checksum(document | {"format": value})))
    with pytest.raises(InputError, match="this version reads 1"):
        Guard.load(folder)


def test_no_path_leads_out_of_the_folder(saved, tmp_path):
    folder = shutil.copytree(saved[1], tmp_path / "paths")
    document = io.parse_toml((folder / "guard.toml").read_text(), "guard.toml")
    document.pop("checksum")
    document["files"]["../../etc/passwd"] = "0" * 64
    (folder / "guard.toml").write_text(io.to_toml(io.add_checksum(document)))
    with pytest.raises(InputError, match="there is no passwd"):
        Guard.load(folder)


def test_a_folder_with_other_things_is_not_written_to(saved, tmp_path):
    (tmp_path / "photo.png").touch()
    with pytest.raises(InputError, match="not empty and holds no guard"):
        saved[0].save(tmp_path)
    again = saved[0].save(tmp_path / "new")
    saved[0].save(again)  # a guard may be written over
    Guard.load(again)


def test_16_bits_halve_the_weights(saved, points, tmp_path):
    guard, folder = saved
    half = guard.save(tmp_path / "half", half=True)
    sizes = [(path / "model.safetensors").stat().st_size for path in (folder, half)]
    assert sizes[1] < 0.7 * sizes[0]
    found = Guard.load(half)
    assert (found.predict(points[0]).label == guard.predict(points[0]).label).float().mean() > 0.95


@needs_onnx
def test_a_network_of_ones_own_travels_as_onnx(guard, points, tmp_path):
    folder = guard.save(tmp_path / "own")
    assert (folder / "network.onnx").exists()
    found = Guard.load(folder)
    same_answers(guard, found, points[0][:60])
    again = Guard.load(found.save(tmp_path / "again"))
    same_answers(guard, again, points[0][:60])


class Stubborn(Columns):
    """Cannot be exported."""

    def forward(self, x):
        return super().forward(torch.as_tensor(x.detach().numpy()))


def test_a_network_that_cannot_travel_is_brought(pool, points, tmp_path):
    guard = Guard.fit(Stubborn(), pool, *points, draws=5, engine="eager")
    folder = guard.save(tmp_path / "brought")
    with pytest.raises(InputError, match="does not contain the network"):
        Guard.load(folder)
    same_answers(guard, Guard.load(folder, Stubborn()), points[0][:30])
    with pytest.raises(InputError, match="does not belong to"):
        Guard.load(folder, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(80, 10)))


def test_the_card_has_the_numbers_and_the_warning(saved, points, tmp_path):
    guard = saved[0]
    text = (saved[1] / "README.md").read_text()
    assert "not a wall" in text
    assert "was not measured" in text
    assert f"{guard.calibration.threshold:.4f}" in text
    evaluated = Guard.load(saved[1])
    evaluated.evaluate(points[0][:20], points[1][:20], eps=0.1, steps=2, draws=2)
    text = (evaluated.save(tmp_path / "evaluated") / "README.md").read_text()
    assert f"{100 * evaluated.evaluation.adaptive.evaded:.1f}%" in text
    assert Guard.load(tmp_path / "evaluated").evaluation == evaluated.evaluation
