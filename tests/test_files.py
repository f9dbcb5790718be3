"""Files are whole or absent, and say whether they are as they were written."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixup_inference.errors import DiskFullError, InputError
from mixup_inference.utils.io import (
    add_checksum,
    atomic_write,
    checksum_problem,
    read_checked_json,
    read_header,
    read_tensors,
    write_json,
    write_tensors,
    write_text,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
FINITE = SCALARS.filter(lambda x: x not in (float("inf"), float("-inf")))
VALUES = st.recursive(
    FINITE, lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside), max_leaves=20
)


@given(st.dictionaries(st.text(), VALUES))
def test_a_seal_survives_json_and_nothing_else(document):
    again = json.loads(json.dumps(add_checksum(document)))
    assert checksum_problem(again) is None
    assert checksum_problem(again | {"one more": 1}) is not None
    for key in again.keys() - {"checksum"}:
        assert checksum_problem({k: v for k, v in again.items() if k != key}) is not None


def test_keys_that_json_makes_strings_are_checked_as_it_writes_them():
    assert (
        checksum_problem(json.loads(json.dumps(add_checksum({"by steps": {2: 1, 10: 2}})))) is None
    )
    assert checksum_problem({"a": 1}) == "carries no checksum"
    assert checksum_problem([1]) == "carries no checksum"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": NaN}', "[" * 100_000, "\0"])
def test_what_is_no_sealed_file_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"a\.json"):
        read_checked_json(path)
    with pytest.raises(InputError, match="there is no file"):
        read_checked_json(tmp_path / "b.json")


@given(cut=st.integers(0, 200), data=st.data())
def test_no_bit_of_a_sealed_file_can_change_unseen(tmp_path_factory, cut, data):
    """But for those between the tokens, which say nothing."""
    path = tmp_path_factory.mktemp("checked") / "a.json"
    document = {"identity": {"model": "mixup"}, "value": [1, 2.5, "text"]}
    write_json(path, add_checksum(document))
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    try:
        read = read_checked_json(path)
    except InputError:
        return
    assert read == add_checksum(document)


def test_the_header_of_a_tensor_file_is_sealed_too(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(5)}, {"loss": 0.25})
    assert read_tensors(path)[1]["loss"] == read_header(path)["loss"] == 0.25
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))
    with pytest.raises(InputError, match="header does not match its checksum"):
        read_tensors(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path, monkeypatch, code):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(self, text, **_):
        with self.open("w") as file:
            file.write(text[:5])
        raise OSError(code, "no more room", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DiskFullError, match=r"no room for .*a\.txt: no more room after 5 bytes"):
        write_text(path, "new and longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), atomic_write(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "not allowed")
    assert list(tmp_path.iterdir()) == []


TENSORS = """
import sys, torch
from pathlib import Path
from mixup_inference.errors import DiskFullError
from mixup_inference.utils.io import write_tensors
try:
    write_tensors(Path(sys.argv[1]), {"x": torch.rand(100_000)}, {})
except DiskFullError as error:
    print(error)
"""


def test_tensors_that_the_system_has_no_room_for(tmp_path):
    """With a real limit of the kernel, because the error comes out of a library in Rust."""
    done = subprocess.run(
        [sys.executable, "-c", TENSORS, tmp_path / "a.safetensors"],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no room for" in done.stdout
    assert "a.safetensors: File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []
