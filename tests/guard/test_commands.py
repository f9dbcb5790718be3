from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from e2e.process import call
from mixup_inference import load_dataset
from mixup_inference.datasets.image_file import read_picture
from mixup_inference.draws import derive_seed
from mixup_inference.guard import Guard


def pixels_of(data, row):
    return (data.images[row, 0] * 255).round().to(torch.uint8).numpy()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The guard of `guard fit`, and what the command printed."""
    folder = tmp_path_factory.mktemp("commands")
    done = call("guard", "fit", "--draws", "8", "--per-class", "10", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "my-guard", done.stdout


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Digits as pictures of many sizes, modes and formats, some files that are none, by class."""
    folder = tmp_path_factory.mktemp("pictures")
    data = load_dataset("digits").train
    for row in range(40):
        pixels = pixels_of(data, row)
        image = Image.fromarray(pixels).resize((8 + 5 * row, 8 + 5 * row), Image.Resampling.NEAREST)
        mode, kind = (("L", "png"), ("RGB", "jpg"), ("RGBA", "png"), ("L", "webp"))[row % 4]
        image.convert(mode).save(folder / f"{row:02d}-{int(data.labels[row])}.{kind}")
    return folder


def test_fit_says_what_it_made(fitted):
    folder, text = fitted
    guard = Guard.load(folder)
    assert f"{guard.calibration.threshold:.4f}" in text
    assert "calibrated on 500 clean images" in text
    assert len(guard.pool) == 100
    assert guard.settings.draws == 8


def test_pictures_of_any_size_and_mode(fitted, pictures):
    done = call("guard", "predict", fitted[0], pictures, "--json", "--seed", "3")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 40
    right = [line["undefended_label"] == line["file"].rpartition(".")[0][-1] for line in lines]
    assert np.mean(right) > 0.9
    again = call("guard", "predict", fitted[0], pictures, "--json", "--seed", "3")
    assert again.stdout == done.stdout
    threshold = Guard.load(fitted[0]).calibration.threshold
    for line in lines:
        assert line["is_adversarial"] == (line["score"] > threshold - 1e-4)


def test_one_bad_file_does_not_stop_the_rest(fitted, pictures, tmp_path):
    broken, missing = tmp_path / "broken.png", tmp_path / "missing.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n rubbish")
    good = sorted(pictures.iterdir())[:3]
    done = call("guard", "predict", fitted[0], good[0], broken, missing, *good[1:])
    assert done.returncode == 1
    assert sum(path.name in done.stdout for path in good) == 3
    assert "broken.png" in done.stderr
    assert "missing.png" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_tells_when_pictures_differ(fitted, tmp_path):
    """The other pictures are all eights, of which far more than 5% are flagged."""
    data = load_dataset("digits").train
    rows = {"same": range(120), "other": torch.nonzero(data.labels == 8).flatten().tolist()}
    for name, some in rows.items():
        (tmp_path / name).mkdir()
        for row in some:
            Image.fromarray(pixels_of(data, row)).save(tmp_path / name / f"{row}.png")
    same, other = (call("guard", "check", fitted[0], tmp_path / n) for n in ("same", "other"))
    assert (same.returncode, other.returncode) == (0, 1), (same.stdout, other.stdout)
    assert "fits" in same.stdout
    assert "Calibrate again" in other.stdout


def test_an_exported_guard_answers_as_predict_does(fitted, pictures, tmp_path):
    done = call("guard", "export", fitted[0], "guard.pt2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "guard.pt2" in done.stdout
    run = torch.export.load(tmp_path / "guard.pt2").module()
    path = min(pictures.glob("*.png"))
    lines = call("guard", "predict", fitted[0], path, "--json", "--seed", "3").stdout
    expected = json.loads(lines)
    pixels = read_picture(path, (1, 8, 8))
    seed = torch.tensor([derive_seed(3, path.name)])
    found = run(torch.from_numpy(pixels)[None] / 255, seed)
    for name in ("label", "undefended_label"):
        assert str(int(found[name])) == expected[name]
    assert bool(found["is_adversarial"]) == expected["is_adversarial"]
    assert float(found["probabilities"].max()) == pytest.approx(expected["probability"], abs=1e-3)


@pytest.mark.parametrize("name", ["guard.txt", "nowhere/guard.onnx"])
def test_export_says_what_is_wrong_with_a_path(fitted, tmp_path, name):
    done = call("guard", "export", fitted[0], name, cwd=tmp_path)
    assert done.returncode == 2
    assert name.split("/")[0] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "nowhere", "guard.onnx"), "holds no guard"),
        (("predict", "nowhere", "a.png"), "holds no guard"),
        (("fit", "--points", "10"), "give at least 19"),
        (("fit", "--points", "5000"), "the data set has only"),
        (("fit", "--weights", "nothing.safetensors"), "there is no"),
        (("fit", "--eps", "lots", "--evaluate"), "must be a number"),
    ],
)
def test_mistakes_are_said_in_words(words, said, tmp_path):
    done = call("guard", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tuning_starts_from_a_preset(tmp_path):
    options = ("--tune", "--preset", "cifar10/mixup+mi-combined", "--draws", "4", "-o", "guard")
    done = call("guard", "fit", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Guard.load(tmp_path / "guard").settings.draws == 4


def test_a_setting_out_of_range_is_refused_in_a_sentence(tmp_path):
    done = call("guard", "fit", "--lam-detect", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: lam_detect must be less than or equal to 1; saw 3.0."
    ]
