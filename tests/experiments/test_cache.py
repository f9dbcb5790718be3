"""What is kept is used again only if it is what was written, and what it should be."""

from __future__ import annotations

import json
import os

import pytest
import torch

from mixup_inference import __version__
from mixup_inference.experiments.cache import Cache, cache_files
from mixup_inference.utils.io import add_checksum, write_json

IDENTITY = {"model": {"seed": 1}, "steps": (1, 2), "eps": 0.1}


class Bench:
    """A store whose parts count how often they are made, and its warnings."""

    def __init__(self, folder):
        self.warnings: list[str] = []
        self.made = 0
        self.cache = Cache(folder, self.warnings.append)

    def value(self, identity=IDENTITY):
        def compute():
            self.made += 1
            return {"correct": 7, 3: (1, 2)}

        return self.cache.get_or_compute("cells", "a cell", identity, compute).value

    def tensors(self, identity=IDENTITY):
        def compute():
            self.made += 1
            return {"x": torch.arange(10.0)}, {"loss": 0.25}

        return self.cache.get_or_compute(
            "attacks", "an attack", identity, compute, name="mixup"
        ).value


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_made_once_and_the_same_when_read(bench, tmp_path):
    first, again = bench.value(), Bench(tmp_path)
    assert first == again.value() == {"correct": 7, "3": [1, 2]}
    made, read = bench.tensors(), again.tensors()
    assert torch.equal(made["x"], read["x"])
    assert made.facts == read.facts
    assert (bench.made, again.made, again.warnings) == (2, 0, [])
    document = json.loads(next(tmp_path.glob("cells/*")).read_text())
    assert document["version"] == __version__
    assert document["identity"]["eps"] == 0.1


def edited(path):
    path.write_text(path.read_text().replace('"correct": 7', '"correct": 8'))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-20])


def empty(path):
    path.write_bytes(b"")


def without_checksum(path):
    document = json.loads(path.read_text())
    del document["checksum"]
    write_json(path, document)


def of_another(path):
    write_json(path, add_checksum({"identity": {"model": 2}, "value": {"correct": 1}}))


def without_value(path):
    document = json.loads(path.read_text())
    del document["value"]
    write_json(path, add_checksum(document))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (edited, "was changed after it was written"),
        (truncated, "is damaged"),
        (empty, "is damaged"),
        (without_checksum, "carries no checksum"),
        (of_another, "holds another result than its name says"),
        (without_value, "of another version"),
    ],
)
def test_a_value_that_is_not_what_was_written_is_made_again_with_a_word(
    bench, tmp_path, damage, why
):
    first = bench.value()
    path = next(tmp_path.glob("cells/*"))
    whole = path.read_bytes()
    damage(path)
    assert bench.value() == first
    assert bench.made == 2
    (warning,) = bench.warnings
    assert why in warning
    assert path.name in warning
    assert "a cell" in warning
    assert path.read_bytes() == whole


def changed_facts(path):
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))


def changed_tensors(path):
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("damage", [truncated, empty, changed_facts, changed_tensors])
def test_the_same_of_tensors(bench, tmp_path, damage):
    facts = bench.tensors().facts
    path = next(tmp_path.glob("attacks/*"))
    damage(path)
    again = bench.tensors()
    assert torch.equal(again["x"], torch.arange(10.0))
    assert again.facts["loss"] == facts["loss"] == 0.25
    assert (bench.made, len(bench.warnings)) == (2, 1)
    assert all(file.problem is None for file in cache_files(tmp_path))


def test_swapped_files_are_noticed(bench, tmp_path):
    bench.tensors()
    other = IDENTITY | {"eps": 0.2}
    bench.tensors(other)
    one, two = (bench.cache.path("attacks", identity, "mixup") for identity in (IDENTITY, other))
    one.write_bytes(two.read_bytes())
    bench.tensors()
    assert "holds another result" in bench.warnings[0]


def test_clocks_do_not_matter(bench, tmp_path):
    bench.value()
    bench.tensors()
    for path, when in zip(tmp_path.rglob("*.*"), (0, 4_000_000_000), strict=True):
        os.utime(path, (when, when))
    again = Bench(tmp_path)
    again.value()
    again.tensors()
    assert (again.made, again.warnings) == (0, [])


def test_what_a_part_was_made_from_belongs_to_it(tmp_path):
    """An attack counts as used even when only the cell that was made from it is read."""
    first = Bench(tmp_path)
    attack = {"model": {"seed": 1}, "steps": 5}
    first.tensors(attack)
    first.tensors({"model": {"seed": 2}})  # of other settings
    first.value({"input": attack, "more": [1]})
    second = Bench(tmp_path)
    second.value({"input": attack, "more": [1]})
    listed = second.cache.used_files()
    paths = [
        second.cache.path("attacks", attack, "mixup"),
        second.cache.path("cells", {"input": attack, "more": [1]}),
    ]
    assert set(listed) == {path.relative_to(tmp_path).as_posix() for path in paths}
    assert None not in listed.values()
    paths[0].write_bytes(b"")
    assert list(second.cache.used_files().values()).count(None) == 1


def test_what_cannot_be_computed_leaves_nothing(bench, tmp_path):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.cache.get_or_compute("cells", "a cell", IDENTITY, fail)
    with pytest.raises(ValueError, match="JSON"):
        bench.cache.get_or_compute("cells", "a cell", IDENTITY, lambda: float("nan"))
    assert list(tmp_path.rglob("*")) == []
