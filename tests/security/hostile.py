"""Files that mean harm, or that chance has spoilt, for the tests of whoever must read them."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: How many examples a long run has; the tests of every day have a few.
MANY = int(os.environ.get("FUZZ_EXAMPLES", "2000"))


def fuzz_settings(examples: int) -> settings:
    """Few examples are always the same ones; many are new ones every time."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples != MANY,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Creates:
    """Once unpickled, a file that was not there."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@st.composite
def spoilt(draw, originals):
    """One of several contents with bytes flipped, cut, put in, left out or repeated."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 12))
        kind = draw(st.sampled_from(["set", "flip", "cut", "insert", "delete", "repeat"]))
        if kind == "set":
            content[start : start + length] = draw(st.binary(min_size=length, max_size=length))
        elif kind == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[start:]
        elif kind == "insert":
            content[start:start] = draw(st.binary(max_size=12))
        elif kind == "delete":
            del content[start : start + length]
        elif kind == "repeat":
            content[start:start] = content[start : start + length] * draw(st.integers(1, 50))
    return bytes(content)


def json_values(leaves=6):
    """Any JSON value, numbers of every size and NaN among them."""
    words = st.sampled_from(
        ["", "clean", "mixup", "mi-ol", "../x", "<i>", "$x_{$", "\x1b[2J", "=1"]
    )
    numbers = st.one_of(
        st.integers(-3, 300), st.integers(), st.floats(), st.sampled_from([10**400, -1, 2**63])
    )
    leaf = st.one_of(st.none(), st.booleans(), numbers, words, st.text(max_size=8))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.one_of(words, st.text(max_size=6)), inner, max_size=3),
        ),
        max_leaves=leaves,
    )


@st.composite
def changed(draw, document, values):
    """A document of which some parts are replaced, left out or doubled."""
    for _ in range(draw(st.integers(1, 3))):
        document = _change(draw, document, values)
    return document


def _change(draw, node, values):
    """The same tree with one change somewhere in it."""
    inner = isinstance(node, dict | list) and len(node) > 0
    if not inner or draw(st.integers(0, 5)) == 0:
        return draw(values)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = draw(st.sampled_from(keys))
    what = draw(st.sampled_from(["deeper", "deeper", "deeper", "drop", "add"]))
    copy = dict(node) if isinstance(node, dict) else list(node)
    if what == "deeper":
        copy[key] = _change(draw, node[key], values)
    elif what == "drop":
        del copy[key]
    elif isinstance(copy, dict):
        copy[draw(st.sampled_from(["extra", "lam", "title", "draws", "seed", "x.y"]))] = draw(
            values
        )
    else:
        copy.append(draw(st.one_of(values, st.just(node[key]))))
    return copy


def tar_member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    """A member of an archive, with any field set to anything."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    return member, content


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of these members, whether or not their headers tell the truth."""
    out = io.BytesIO()
    for member, content in members:
        out.write(member.tobuf(tarfile.GNU_FORMAT))
        out.write(content + bytes(-len(content) % 512))
    return out.getvalue() + bytes(1024)
