"""Several processes come to the numbers of a single one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mixup_inference import InputError
from mixup_inference.utils.distributed import Ranks

SCRIPT = """
import sys
import torch
from torch import nn
from mixup_inference import CombinedInference, MixupInference, Pool, evaluate, pgd
from mixup_inference.attacks import eot_pgd, square_eot
from mixup_inference.utils.distributed import Ranks

torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.rand(50, 1, 4, 4), torch.arange(50) % 3
pool = Pool(torch.rand(30, 1, 4, 4), torch.arange(30) % 3)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.ReLU(), nn.Linear(16, 3)).eval()
ranks = Ranks.from_environment()
better = MixupInference(model, pool, draws=6, sampling="stratified", control_variate=True)
defenses = [model, better, CombinedInference(model, pool, draws=6, threshold=0.0)]
counts = [evaluate(d, x, y, batch_size=7, ranks=ranks) for d in defenses]
paths = pgd(
    model, x, y, eps=0.1, step=0.03, steps=4, snapshots=(2, 4), targeted=True, batch_size=9,
    ranks=ranks,
)
common = {"eps": 0.1, "batch_size": 24, "ranks": ranks}
adaptive = eot_pgd(better, x, y, step=0.03, steps=3, draws=6, **common)
queries = square_eot(better, x[:3], y[:3], queries=20, **common)  # fewer batches than processes
told = ranks.first(lambda: ranks.rank)
out = {
    "counts": [(c.correct, c.total, c.passes) for c in counts],
    "paths": paths,
    "adaptive": vars(adaptive),
    "queries": queries.examples,
    "told": told,
}
torch.save(out, f"{sys.argv[1]}/{ranks.rank}.pt")
"""


def run(processes: int, folder) -> list[dict]:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(start if processes > 1 else []), str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(processes)]


def test_any_number_of_processes_finds_the_same(tmp_path):
    (alone,) = run(1, tmp_path / "1")
    assert alone["counts"][1][2] == 7  # one pass and six draws
    for processes in (2, 3):
        for found in run(processes, tmp_path / str(processes)):
            torch.testing.assert_close(found, alone, rtol=0, atol=0)


def test_parts_are_dealt_out_in_turn():
    done: list[str] = []

    class Second(Ranks):
        def _all(self, value):
            return [["a", "c"], value]

    assert Second(1, 2).share("abc", lambda part: done.append(part) or part) == ["a", "b", "c"]
    assert done == ["b"]


def test_mistakes():
    with pytest.raises(InputError, match="rank 2"):
        Ranks(2, 2)
