"""Draws in integers of 32 bits are those of 64, in torch and in the engines that need them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from mixup_inference.draws import Draws, make_key
from mixup_inference.guard.narrow import MOST, NarrowDraws

SEEDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)


@given(
    seeds=SEEDS,
    key=st.integers(-(2**63), 2**63 - 1),
    slot=st.integers(0, 3),
    below=st.integers(1, MOST - 1),
    labels=st.integers(1, 2000),
)
@example(seeds=[-(2**63), -1, 0, 2**63 - 1], key=-1, slot=0, below=MOST - 1, labels=999)
def test_the_numbers_are_those_of_64_bits(seeds, key, slot, below, labels):
    wide = Draws(key, torch.tensor(seeds), torch.arange(40))
    narrow = NarrowDraws.of(wide, labels)
    assert torch.equal(narrow.integers(slot, below), wide.integers(slot, below))
    many = torch.arange(1, 41)
    assert torch.equal(narrow.integers(slot, many), wide.integers(slot, many))
    one, other = ((draws.uniform(slot) * labels).long() for draws in (narrow, wide))
    assert torch.equal(one, other)


class Numbers(nn.Module):
    """Both kinds of numbers, for seeds."""

    def forward(self, seed):
        draws = NarrowDraws.of(Draws(make_key(0, "narrow"), seed, torch.arange(7)), 9)
        return draws.integers(1, 500), (draws.uniform(0) * 9).long()


def test_openvino_draws_the_same():
    """With int64 in 32 bits, and shifts that are divisions of floats."""
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("onnxscript")
    seeds = torch.cat([torch.randint(0, 2**31, (2000,)), torch.tensor([0, 1, 2**31 - 1])])
    program = torch.export.export(
        Numbers(), (seeds,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    content = exported.model_proto.SerializeToString()
    core = openvino.Core()
    run = core.compile_model(core.read_model(content), "CPU")
    for found, expected in zip(run(seeds.numpy()).values(), Numbers()(seeds), strict=True):
        assert torch.equal(torch.from_numpy(found), expected)
