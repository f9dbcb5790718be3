"""Several processes train what one trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

import several_processes as team
from mixup_inference import InputError, train
from mixup_inference.training import OBJECTIVES, make_fabric
from mixup_inference.training.sync_batch_norm import joint_batch_norm


def launch(command, out):
    """Run the trainings in several processes; what the first of them wrote."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(out / "found.pt")


@pytest.fixture(scope="module")
def alone():
    return {
        objective: team.trained(
            team.replace(team.RECIPE, objective=objective), validation=team.VALIDATION
        )
        for objective in OBJECTIVES
    }


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_are_equal_to_one(alone, tmp_path, processes):
    """Two that Fabric starts, three that torchrun does."""
    script = str(Path(team.__file__))
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [script, str(tmp_path), "2"] if processes == 2 else [*torchrun, script, str(tmp_path)]
    team.stopped(team.RECIPE, tmp_path / "by one", after=4)
    found = launch(command, tmp_path)
    for objective in OBJECTIVES:
        close = {"rtol": 1e-10, "atol": 1e-10}
        torch.testing.assert_close(
            found[objective]["weights"], alone[objective]["weights"], **close
        )
        torch.testing.assert_close(found[objective]["history"], alone[objective]["history"])
    # Statistics of each process's own rows give other weights.
    apart = (found["apart"]["weights"] - alone["erm"]["weights"]).abs().max()
    assert float(apart) > 1e-3

    straight = alone["iat"]["weights"]
    torch.testing.assert_close(found["resumed"]["weights"], straight, **close)
    resumed = team.trained(team.RECIPE, folder=tmp_path / "by several")
    torch.testing.assert_close(resumed["weights"], straight, **close)


def test_batch_norms_are_themselves_again():
    model = team.network()
    names, kinds = list(model.state_dict()), [type(part) for part in model.modules()]

    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return x

    both = nn.Sequential(model, Own(3))
    with joint_batch_norm(both):
        assert list(model.state_dict()) == names
        assert [type(part) for part in model.modules()] == kinds
        assert "forward" in vars(model[1])
        assert "forward" not in vars(both[1])
        x = team.DATA[0][:4]
        model.eval()(x)  # asks no other process
    assert not any("forward" in vars(part) for part in both.modules())


@pytest.mark.parametrize("objective", sorted({*OBJECTIVES} - {"erm", "at"}))
def test_half_precision(objective):
    """It trains nearly as in full precision, and the weights stay float32."""
    recipe = team.replace(team.RECIPE, objective=objective)
    full, half = team.network().float(), team.network().float()
    data = team.DATA[0].float(), team.DATA[1]
    expected = train(full, *data, recipe)
    history = train(half, *data, recipe, fabric=make_fabric(precision="bf16-mixed"))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert [e.loss for e in history] == pytest.approx([e.loss for e in expected], rel=0.05)
    assert [e.loss for e in history] != [e.loss for e in expected]


def test_a_recipe_may_say_its_precision():
    """The network and the inner attack compute in it; the pixels that are attacked do not."""
    recipe = team.replace(team.RECIPE, objective="iat", precision="bf16-mixed")
    data, seen = (team.DATA[0].float(), team.DATA[1]), set()
    by_recipe, by_fabric = team.network().float(), team.network().float()
    linear = next(part for part in by_recipe.modules() if isinstance(part, torch.nn.Linear))
    hook = linear.register_forward_hook(
        lambda part, inputs, output: seen.add((part.training, output.dtype))
    )
    history = train(by_recipe, *data, recipe)
    hook.remove()
    assert (True, torch.bfloat16) in seen  # a step
    assert (False, torch.bfloat16) in seen  # the inner attack
    expected = train(
        by_fabric,
        *data,
        team.replace(recipe, precision=None),
        fabric=make_fabric(precision="bf16-mixed"),
    )
    assert [e.loss for e in history] == pytest.approx([e.loss for e in expected], rel=1e-2)
    with pytest.raises(InputError, match="asks for bf16-mixed, but the Fabric has 32-true"):
        train(by_recipe, *data, recipe, fabric=make_fabric())
    with pytest.raises(InputError, match="precision must be"):
        team.replace(recipe, precision="half")


def test_settings_that_do_not_work_are_refused(monkeypatch):
    with pytest.raises(InputError, match="unknown precision"):
        make_fabric(precision="64-true")
    with pytest.raises(InputError, match="16-mixed needs a GPU"):
        make_fabric(precision="16-mixed")
    with pytest.raises(InputError, match="16-mixed needs a GPU"):
        train(team.network().float(), team.DATA[0].float(), team.DATA[1],
              team.replace(team.RECIPE, precision="16-mixed"))  # fmt: skip
    with pytest.raises(InputError, match="unknown strategy"):
        make_fabric(strategy="fsdp")
    with pytest.raises(InputError, match=r"fabric\.launch"):
        team.trained(team.RECIPE, Fabric(accelerator="cpu", devices=2, strategy="ddp"))
    for name, value in (
        ("TORCHELASTIC_RUN_ID", "x"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("WORLD_SIZE", "4"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="torchrun started devices = 2, and 3 are asked for"):
        make_fabric(devices=3)
    with pytest.raises(InputError, match="torchrun started nodes = 2, and 1 are asked for"):
        make_fabric(nodes=1)
