"""No pickle from outside is executed, and nothing imports code that a file names."""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict, deque
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import mixup_inference
from mixup_inference import InputError, create_model, from_pretrained, load_checkpoint, load_weights
from mixup_inference.attacks import check_peer
from mixup_inference.cli.report import write_reports
from mixup_inference.datasets import load_dataset
from mixup_inference.datasets.cifar import CIFAR10
from mixup_inference.datasets.readers import records
from mixup_inference.errors import MixupInferenceWarning
from security.hostile import Creates, tar, tar_member
from security.memory import bounded

SOURCES = sorted(Path(mixup_inference.__file__).parent.rglob("*.py"))


OLD = {"_use_new_zipfile_serialization": False}


def saved(content, **options):
    out = io.BytesIO()
    torch.save(content, out, **options)
    return out.getvalue()


def torch_tar(evil):
    """The format of torch before 0.2, which torch would unpack to disk."""
    pickled = pickle.dumps(evil)
    return tar(
        *(tar_member(name, pickled) for name in ("sys_info", "storages", "tensors", "pickle"))
    )


def script(evil):
    """What looks like TorchScript."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("a/data.pkl", "a/constants.pkl", "a/version", "a/code/x.py"):
            archive.writestr(name, pickle.dumps(evil))
    return out.getvalue()


UNREADABLE = "neither safetensors nor a torch file"
FORMS = {
    "torch file": (lambda evil: saved({"weight": evil}), "no named tensors"),
    "torch file with a real tensor": (
        lambda evil: saved({"weight": torch.ones(2, 2), "bias": evil}),
        r"missing \['bias'\]",
    ),
    "old torch file": (lambda evil: saved({"w": evil}, **OLD), "no named tensors"),
    "oldest torch file": (torch_tar, UNREADABLE),
    "plain pickle": (pickle.dumps, UNREADABLE),
    "old plain pickle": (lambda evil: pickle.dumps({"state_dict": evil}, protocol=0), UNREADABLE),
    "TorchScript": (script, UNREADABLE),
    "a whole module": (
        lambda _: saved(torch.nn.Sequential(torch.nn.Linear(1, 1))),
        r"no state_dict; saw torch\.nn\.modules\.container\.Sequential",
    ),
}


@pytest.mark.filterwarnings("ignore::mixup_inference.errors.MixupInferenceWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".pt", ".th", ".pth", ".safetensors"])
def test_weights(tmp_path, monkeypatch, form, suffix):
    monkeypatch.chdir(tmp_path)
    trace, path = tmp_path / "executed", tmp_path / f"weights{suffix}"
    write, words = FORMS[form]
    path.write_bytes(write(Creates(trace)))
    with pytest.raises(InputError, match=words):
        load_weights(torch.nn.Linear(2, 2), path)
    for load in (load_checkpoint, from_pretrained):
        with pytest.raises(InputError, match="not a readable safetensors file"):
            load(path)
    assert [*tmp_path.iterdir()] == [path]


class Calls:
    """Once unpickled, a call of this function with these arguments."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def linear():
    return {"module.weight": torch.eye(2), "module.bias": torch.ones(2)}


@pytest.mark.parametrize("options", [{}, OLD], ids=["zip", "old"])
def test_python_objects_beside_the_weights_are_passed_over(tmp_path, options):
    """As training scripts write them; tensors are read, everything else is inert."""
    losses = defaultdict(list)
    losses["train"].append(np.float64(0.5))
    content = {
        "args": argparse.Namespace(lr=0.1, nested=argparse.Namespace(deep=[1])),
        "best": np.float32(93.1),
        "curve": np.arange(3),
        "losses": losses,
        "last": deque([1, 2], maxlen=3),
        "tags": {"a", "b"},
        "when": datetime(2020, 2, 20, tzinfo=UTC),
        "net": linear(),
        "evil": Calls(subprocess.call, f"touch {tmp_path / 'executed'}", 0, None),
        "import": Calls(importlib.import_module, "antigravity"),
    }
    (tmp_path / "w.pt").write_bytes(saved(content, **options))
    model = torch.nn.Linear(2, 2)
    with pytest.warns(MixupInferenceWarning, match=r"passed over: .*argparse\.Namespace") as seen:
        load_weights(model, tmp_path / "w.pt")
    assert "subprocess.call" in str(seen[0].message)
    assert torch.equal(model.weight, torch.eye(2))
    assert "antigravity" not in sys.modules
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


@pytest.mark.parametrize("options", [{}, OLD], ids=["zip", "old"])
def test_a_file_that_calls_the_shell_is_refused(tmp_path, options):
    content = linear() | {"evil": Calls(os.system, f"touch {tmp_path / 'executed'}")}
    (tmp_path / "w.pt").write_bytes(saved(content, **options))
    with pytest.raises(InputError, match=UNREADABLE):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_stand_ins_are_gone_after_the_file(tmp_path):
    before = torch.serialization.get_safe_globals()
    (tmp_path / "w.pt").write_bytes(saved(linear() | {"args": argparse.Namespace(a=1)}))
    with pytest.warns(MixupInferenceWarning):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    assert set(torch.serialization.get_safe_globals()) == set(before)


def test_a_batch_of_cifar(tmp_path):
    trace = tmp_path / "executed"
    for protocol in range(6):
        evil = pickle.dumps({"data": Creates(trace), "labels": [1]}, protocol=protocol)
        with pytest.raises(InputError, match="which is never loaded"):
            records(evil)
        folder = tmp_path / CIFAR10.python.folder
        folder.mkdir(exist_ok=True)
        for name in (*CIFAR10.train, *CIFAR10.test):
            (folder / name).write_bytes(evil)
        with pytest.raises(InputError, match="which is never loaded"):
            load_dataset("cifar10", tmp_path)
    archive = tmp_path / "archive"
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder, CIFAR10.python.folder)
    with pytest.raises(InputError, match="which is never loaded"):
        load_dataset("cifar10", archive)
    assert not trace.exists()


STATE = b"N}X\x0c\x00\x00\x00__defaults__X\x01\x00\x00\x00xs\x86b."


@pytest.mark.parametrize(
    "name", ["numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode"]
)
def test_a_batch_of_cifar_leaves_the_reader_as_it_was(name):
    """The names that are admitted are stand-ins; a pickle cannot change those for the next file."""
    module, function = name.rsplit(".", 1)
    with pytest.raises(InputError):
        records(f"c{module}\n{function}\n".encode() + STATE)
    good = pickle.dumps({"data": Bytes(), "labels": [3]}, protocol=2)
    assert records(good) == b"\x03" + bytes(3072)


class Bytes:
    """A NumPy array as old pickles have it, without NumPy's name changing with its version."""

    def __reduce__(self):
        import numpy as np

        return np.zeros((1, 3072), np.uint8).__reduce__()


COPY = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
BOMBS = {
    b"\x80\x02]r\xff\xff\xff\x7f.": "numbers more objects than it can hold",
    b"\x80\x02]p4000000000\n.": "numbers more objects than it can hold",
    b"X\x00\x00\x10\x00" + bytes(1 << 20) + b"q\x00" + 2000 * COPY + b".": "makes more bytes",
    b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.": "expected .* bytes",
    b"]" + b"(" * 100_000 + b".": "not a batch",
}


@pytest.mark.parametrize("number", range(len(BOMBS)))
def test_a_batch_of_cifar_does_not_swell(number):
    bomb, words = [*BOMBS.items()][number]
    with bounded(1 << 30), pytest.raises(InputError, match=words):
        records(bomb)


def test_results_are_json_and_nothing_else(tmp_path):
    trace, path = tmp_path / "executed", tmp_path / "results.json"
    for content in (pickle.dumps(Creates(trace)), saved({"schema": Creates(trace)})):
        path.write_bytes(content)
        for run in (tmp_path, path):
            with pytest.raises(InputError, match=r"cannot read the results|not valid JSON"):
                write_reports((run,), None)
    assert not trace.exists()


def test_a_checkpoint_of_ours_names_networks_of_the_registry_only(tmp_path):
    model = create_model("small_cnn", 2, channels=1, width=1)
    for name in ("os:system", "security.hostile:Creates", "../small_cnn", "__import__"):
        object.__setattr__(model, "config", model.config | {"name": name})
        path = tmp_path / "model.safetensors"
        mixup_inference.save_checkpoint(path, model)
        with pytest.raises(InputError, match="names an architecture that is not here"):
            load_checkpoint(path)


#: What runs code that it is given, or unpacks what it is given to disk; and who may call it.
DANGEROUS = {
    "load_module": set(),
    "run_path": set(),
    "system": set(),
    "popen": set(),
    "Popen": {"datasets/npm_mirror.py"},
    "extract": set(),
    "extractall": set(),
    "unpack_archive": set(),
    "Unpickler": set(),
    "import_module": {
        "__init__.py",  # of its own modules, by fixed names
        "attacks/external.py",
        "models/onnx_network.py",
        "registry.py",
        "utils/renaming.py",  # of its own modules, by fixed names
    },
}
BUILT_IN = ("eval", "exec", "compile", "__import__")
MODULES = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "yaml",
           "tarfile", "ftplib", "telnetlib", "xml", "ctypes"}  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_source_calls_nothing_that_runs_what_it_reads(path):
    name = path.relative_to(SOURCES[0].parent).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or node.names[0].name
            root = module.split(".")[0]
            assert root not in MODULES or name == "datasets/readers.py", module
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        assert called not in BUILT_IN
        assert name in DANGEROUS.get(called.rsplit(".", 1)[-1], {name}), called
        assert keywords.get("shell") != "True"
        if called in ("torch.load", "np.load", "numpy.load"):
            assert keywords.get("weights_only") == "True"


@pytest.mark.parametrize(
    ("attack", "setting"),
    [("foolbox:HopSkipJumpAttack", "tensorboard"), ("art:FastGradientMethod", "summary_writer")],
)
def test_attacks_of_other_libraries_write_no_logs(attack, setting):
    pytest.importorskip(attack.split(":", maxsplit=1)[0])
    with pytest.raises(InputError, match=f"unknown setting of {attack} '{setting}'"):
        check_peer(attack, {setting: "somewhere"})
