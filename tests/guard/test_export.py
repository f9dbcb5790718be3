"""An exported guard has the draws of Python's and its answers, whatever runs it, row by row."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from guard.conftest import Columns
from mixup_inference import InputError, Pool
from mixup_inference.guard import Answer, Calibration, Guard, Settings
from mixup_inference.guard import export as exporting
from mixup_inference.guard.export import data_of, difference
from mixup_inference.guard.guard import STREAM
from mixup_inference.models.onnx_network import OnnxNetwork, export_network

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

OUTPUTS = tuple(field.name for field in dataclasses.fields(Answer))
SEEDS = st.integers(-(2**63), 2**63 - 1)


def opened(path):
    """A function of images and seeds that ONNX Runtime computes from a file."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["images", "seed"]

    def run(x, seeds):
        values = session.run(OUTPUTS, {"images": x.numpy(), "seed": seeds.numpy()})
        return dict(zip(OUTPUTS, map(torch.from_numpy, values), strict=True))

    return run


def with_threshold(model, pool, threshold, **options):
    calibration = Calibration(
        threshold=threshold, false_positive_rate=0.05, points=20, flagged=0, low=0, high=1
    )
    return Guard(model, pool, calibration, Settings(engine="eager", stop=None, **options))


class Coded(nn.Module):
    """Four classes; the first pixel can be read off the logits, the second one decides."""

    def forward(self, x):
        code, place = x[:, 0, 0, :1], x[:, 0, 0, 1:]
        return 2 * code * torch.tensor([0.0, 1, 2, 3]) - 40 * (place - torch.arange(4) / 3) ** 2


@pytest.fixture(scope="module")
def coded_pool():
    """Each image holds its number."""
    images = torch.zeros(200, 1, 1, 2, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(200)
    return Pool(images, torch.arange(200) % 4)


@pytest.fixture(scope="module", params=["independent", "stratified"])
def one_draw(request, coded_pool, tmp_path_factory):
    """A guard that makes one draw and flags everything, and its file."""
    guard = with_threshold(Coded(), coded_pool, -1, draws=1, sampling=request.param, seed=3)
    path = tmp_path_factory.mktemp("draws") / "guard.onnx"
    return guard, opened(guard.export(path))


def with_each_partner(mi, x):
    """What the network predicts for each image mixed with each image of the pool."""
    mixtures = mi.lam * x[:, None] + (1 - mi.lam) * mi.pool.pixels(torch.arange(200))
    return torch.softmax(Coded()(mixtures.flatten(0, 1)), 1).view(len(x), 200, 4)


@settings(max_examples=60, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=20))
@example(seeds=[-(2**63), -1, 0, 1, 2**63 - 1, 2**32, -(2**32) - 1])
def test_the_graph_draws_the_images_that_python_draws(one_draw, seeds):
    """Which one was drawn is read off the score (MI-PL) and the probabilities (MI-OL)."""
    guard, run = one_draw
    seeds = torch.tensor(seeds)
    x = torch.zeros(len(seeds), 1, 1, 2)
    x[:, 0, 0, 1] = torch.arange(len(seeds)) % 4 / 3
    found = run(x, seeds)
    y_hat = found["undefended_label"]
    assert y_hat.tolist() == [row % 4 for row in range(len(seeds))]
    detector, defender = guard.inference.detector, guard.inference.defender
    before = torch.softmax(Coded()(x), 1)
    gaps = (before[:, None] - with_each_partner(detector, x))[torch.arange(len(x)), :, y_hat]
    off = {
        detector: (gaps - found["score"][:, None]).abs(),
        defender: (with_each_partner(defender, x) - found["probabilities"][:, None]).abs().amax(2),
    }
    numbers = guard.inference.part_numbers(x, seeds, STREAM)
    for mi, drawn in zip((detector, defender), numbers, strict=True):
        chosen = mi.partners(y_hat, drawn)[1]
        assert float(off[mi].gather(1, chosen).max()) < 1e-6
        assert int((off[mi] < 1e-6).sum(1).max()) <= 10  # of 200 would have given the same


def that_flags_half(pool, points, **options):
    """A guard with a threshold in the middle of the scores."""
    uncalibrated = with_threshold(Columns(), pool, 1, **options)
    scores = uncalibrated.predict(points[0][:100], seeds=torch.arange(100)).score
    return with_threshold(Columns(), pool, float(scores.median()), **options)


@pytest.fixture(scope="module", params=["independent", "stratified"])
def exported(request, pool, points, tmp_path_factory):
    """A guard that flags half of the images, its file, and what runs it."""
    guard = that_flags_half(pool, points, draws=12, sampling=request.param)
    path = guard.export(tmp_path_factory.mktemp("export") / "guard.onnx")
    return guard, path, opened(path)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 399), SEEDS), min_size=1, max_size=9),
    cuts=st.sets(st.integers(1, 8)),
)
@example(rows=[(5, -(2**63)), (6, 2**63 - 1)], cuts={1})
@example(rows=[(7, 0)], cuts=set())
def test_a_file_answers_as_python_does_for_any_split_of_the_rows(exported, points, rows, cuts):
    guard, _, run = exported
    x = points[0][[row for row, _ in rows]].float() / 255
    seeds = torch.tensor([seed for _, seed in rows])
    expected = guard.predict(x, seeds=seeds)
    cuts = sorted(cut for cut in cuts if cut < len(x))
    pieces = zip(x.tensor_split(cuts), seeds.tensor_split(cuts), strict=True)
    parts = [run(*piece) for piece in pieces]
    found = {name: torch.cat([part[name] for part in parts]) for name in OUTPUTS}
    for name in OUTPUTS:
        assert found[name].dtype == getattr(expected, name).dtype
        assert found[name].shape == getattr(expected, name).shape
    assert difference(expected, found, guard.calibration.threshold) is None


def test_labels_and_flags_are_those_of_early_stopping(exported, pool, points):
    guard, _, run = exported
    x, seeds = points[0].float() / 255, torch.arange(400) * 7919 - 10**15
    early = Guard(
        Columns(), pool, guard.calibration, guard.settings.model_copy(update={"stop": "exact"})
    ).predict(x, seeds=seeds)
    full, found = guard.predict(x, seeds=seeds), run(x, seeds)
    assert difference(full, found, guard.calibration.threshold) is None
    assert 100 < int(found["is_adversarial"].sum()) < 300
    assert int(early.draws.sum()) < int(found["draws"].sum())
    first, second = full.probabilities.topk(2, 1).values.unbind(1)
    clear = (first - second > 1e-4) & ((full.score - guard.calibration.threshold).abs() > 1e-4)
    assert clear.float().mean() > 0.95
    for name in ("label", "undefended_label", "is_adversarial"):
        assert torch.equal(getattr(early, name)[clear], found[name][clear])


def test_the_file_says_what_it_is(exported):
    guard, path, _ = exported
    about = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    assert json.loads(about["class_names"]) == list(guard.class_names)
    assert float(about["threshold"]) == guard.calibration.threshold
    assert about["shape"] == "1x8x10"
    assert about["draws"] == "12"
    assert "evades" in about["warning"]


WITHOUT_THE_PACKAGE = """
import sys, torch
run = torch.export.load(sys.argv[1]).module()
given = torch.load(sys.argv[2])
torch.save(dict(run(given["x"], given["seeds"])), sys.argv[3])
assert not [name for name in sys.modules if name.startswith("mixup_inference")]
"""


def test_a_program_of_torch_needs_no_package(pool, points, tmp_path):
    guard = with_threshold(Columns(), pool, 0.05, draws=4, sampling="stratified")
    x, seeds = points[0][:7].float() / 255, torch.arange(7) - 3
    path, given_, answers = (tmp_path / name for name in ("guard.pt2", "given.pt", "answers.pt"))
    guard.export(path)
    torch.save({"x": x, "seeds": seeds}, given_)
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, path, given_, answers]
    subprocess.run(command, check=True, cwd=tmp_path)
    found = torch.load(answers)
    assert tuple(found) == OUTPUTS
    expected = guard.predict(x, seeds=seeds)
    assert difference(expected, found, guard.calibration.threshold) is None


def test_a_large_pool_lies_beside_the_file_and_a_failed_export_leaves_nothing(
    coded_pool, tmp_path, monkeypatch
):
    guard, path = with_threshold(Coded(), coded_pool, 0.1, draws=4), tmp_path / "guard.onnx"
    monkeypatch.setattr(exporting, "LARGE", 300)
    guard.export(path)
    assert sorted(tmp_path.iterdir()) == [path, data_of(path)]
    assert data_of(path).stat().st_size >= 400
    x, seeds = coded_pool.pixels(torch.arange(5)), torch.arange(5)
    expected, found = guard.predict(x, seeds=seeds), opened(path)(x, seeds)
    assert difference(expected, found, 0.1) is None
    before = path.read_bytes()
    monkeypatch.setattr(exporting, "TOLERANCE", -1)
    with pytest.raises(InputError, match="differs from the guard"):
        guard.export(path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path, data_of(path)]


class Counting(nn.Module):
    """It cannot be traced: how often it computes depends on values."""

    def forward(self, x):
        return Columns()(x) * int(x.max() > 0.5)


@pytest.mark.parametrize(
    ("model", "options", "name", "words"),
    [
        (Columns(), {}, "guard.txt", "name the file .onnx or .pt2"),
        (Columns(), {}, "nowhere/guard.onnx", "there is no folder"),
        (Columns(), {"control_variate": True}, "guard.onnx", "control_variate"),
        (Counting(), {}, "guard.onnx", "cannot be exported"),
    ],
)
def test_what_cannot_be_exported_is_said_in_words(pool, tmp_path, model, options, name, words):
    guard = with_threshold(model, pool, 0.1, draws=4, **options)
    with pytest.raises(InputError, match=words):
        guard.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def in_openvino(path):
    """A function of images and seeds that OpenVINO computes from a file."""
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(x, seeds):
        values = compiled({"images": x.numpy(), "seed": seeds.numpy()})
        return {name: torch.from_numpy(values[name].copy()) for name in OUTPUTS}

    return run


def test_openvino_gets_nan_rather_than_other_draws(exported, points):
    """Its int64 has 32 bits, and it does not say so."""
    found = in_openvino(exported[1])(points[0][:5].float() / 255, torch.arange(5))
    assert found["score"].isnan().all()
    assert found["is_adversarial"].all()


@pytest.mark.slow
def test_openvino_agrees_if_the_draws_are_narrow(pool, points, tmp_path):
    guard = that_flags_half(pool, points, draws=4)
    path = exporting.export_guard(guard, tmp_path / "guard.onnx", narrow=True)
    for run, seeds in (
        (in_openvino(path), torch.randint(0, 2**31, (100,))),
        (opened(path), torch.randint(-(2**63), 2**63 - 1, (100,))),
    ):
        x = points[0][:100].float() / 255
        expected, found = guard.predict(x, seeds=seeds), run(x, seeds)
        assert difference(expected, found, guard.calibration.threshold) is None
        assert 10 < int(found["is_adversarial"].sum()) < 90


MEASURED = """
import re, sys
from pathlib import Path
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).random((4, 3, 224, 224), dtype=np.float32)
draws = session.run(["draws"], {"images": x, "seed": np.arange(4)})[0]
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(int(peak) / 1024, *draws)  # (the peak of getrusage may be the parent's)
"""


@pytest.mark.slow
def test_a_file_for_224_pixels_and_1000_classes_needs_little_memory(tmp_path):
    """At once, the 120 mixtures of 4 images would fill 385 MB with the first layer's output."""
    network = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten(),
        nn.Linear(64 * 49, 1000),
    )  # fmt: skip
    images = torch.randint(0, 256, (1000, 3, 224, 224), dtype=torch.uint8)
    guard = with_threshold(network, Pool(images, torch.arange(1000)), -1, draws=30)
    path = guard.export(tmp_path / "guard.onnx")
    assert path.stat().st_size < 10e6
    assert data_of(path).stat().st_size > 150e6
    command = [sys.executable, "-c", MEASURED, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    megabytes, *draws = done.stdout.split()
    assert draws == ["60"] * 4
    assert float(megabytes) < 600


def test_a_network_that_is_an_onnx_file_is_refused(pool, tmp_path):
    network = OnnxNetwork(export_network(Columns(), pool.pixels(torch.arange(2))))
    with pytest.raises(InputError, match="give the torch model"):
        with_threshold(network, pool, 0.1).export(tmp_path / "guard.onnx")


def test_stratified_draws_are_not_narrow(pool, tmp_path):
    guard = with_threshold(Columns(), pool, 0.1, sampling="stratified")
    with pytest.raises(InputError, match="64 bits"):
        exporting.export_guard(guard, tmp_path / "guard.onnx", narrow=True)


def test_a_missing_library_is_named(pool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    guard = with_threshold(Columns(), pool, 0.1)
    with pytest.raises(InputError, match="engines"):
        guard.export(tmp_path / "guard.onnx")
