"""Where memory runs out the chunk is halved, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from mixup_inference import CombinedInference, MixupInference, Pool, pgd
from mixup_inference.attacks import eot_pgd
from mixup_inference.errors import MixupInferenceWarning

torch.manual_seed(0)
X = torch.rand(12, 1, 3, 3).double()
Y = torch.arange(12) % 4
POOL = Pool(torch.rand(12, 1, 3, 3).double(), torch.arange(12) % 4)
PLAIN = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 4)).double().eval()


class _BackwardFails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, most: int) -> Tensor:
        ctx.most = most
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        _fail_beyond(ctx.most, gradient)
        return gradient, None


def _fail_beyond(most: int, x: Tensor) -> None:
    if len(x) > most:
        raise torch.OutOfMemoryError(f"tried to allocate room for {len(x)} images")


class Small(nn.Module):
    """A network with room for so many images, forward or in the backward pass."""

    def __init__(self, most: int, *, backward: bool = False) -> None:
        super().__init__()
        self.net, self.most, self.backward = PLAIN, most, backward

    def forward(self, x: Tensor) -> Tensor:
        if self.backward:
            x = _BackwardFails.apply(x, self.most)
        else:
            _fail_beyond(self.most, x)
        return self.net(x)


@pytest.mark.parametrize(
    "settings",
    [{}, {"control_variate": True, "sampling": "stratified"}, {"stop": "exact"}],
    ids=["plain", "better", "stop"],
)
def test_the_answer_is_that_of_a_small_chunk(settings):
    expected = MixupInference(PLAIN, POOL, chunk=4, **settings)(X, index=torch.arange(12))
    tight = MixupInference(Small(5), POOL, **settings)
    with pytest.warns(MixupInferenceWarning, match="going on with 4"):
        found = tight(X, index=torch.arange(12))
    torch.testing.assert_close(found, expected)
    assert tight.chunk == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(tight(X, index=torch.arange(12)), expected)


def test_a_call_without_index_has_its_own_draws_still():
    expected = [MixupInference(PLAIN, POOL)(X)]
    tight = MixupInference(Small(5), POOL)
    with pytest.warns(MixupInferenceWarning):
        torch.testing.assert_close(tight(X), expected[0])
    assert tight.calls == 1


def test_combined_passes_it_on():
    expected = CombinedInference(PLAIN, POOL, threshold=0.0)(X, index=torch.arange(12))
    tight = CombinedInference(Small(5), POOL, threshold=0.0)
    with pytest.warns(MixupInferenceWarning):
        torch.testing.assert_close(tight(X, index=torch.arange(12)), expected)


def test_the_backward_pass_of_attacks():
    options = {"eps": 0.1, "step": 0.03, "steps": 3, "draws": 6, "batch_size": 64}
    expected = eot_pgd(MixupInference(PLAIN, POOL), X, Y, **options).examples
    tight = MixupInference(Small(5, backward=True), POOL)
    with pytest.warns(MixupInferenceWarning, match="going on with 4"):
        found = eot_pgd(tight, X, Y, **options).examples
    torch.testing.assert_close(found, expected)

    expected = pgd(MixupInference(PLAIN, POOL, draws=6), X, Y, eps=0.1, step=0.03, steps=3)
    tight = MixupInference(Small(5, backward=True), POOL, draws=6)
    with pytest.warns(MixupInferenceWarning, match="going on with 4"):
        found = pgd(tight, X, Y, eps=0.1, step=0.03, steps=3)
    torch.testing.assert_close(found, expected)


def test_other_errors_and_the_last_image_are_not_hidden():
    with pytest.warns(MixupInferenceWarning), pytest.raises(torch.OutOfMemoryError):
        MixupInference(Small(0), POOL)(X)

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("another thing")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="another thing"):
            MixupInference(Broken(), POOL)(X.float())


SCRIPT = """
import re, resource, warnings
import torch
from torch import nn
from mixup_inference import MixupInference, Pool
torch.manual_seed(0)
torch.set_num_threads(1)
pool = Pool(torch.randint(0, 256, (20, 3, 64, 64), dtype=torch.uint8), torch.arange(20) % 2)
model = nn.Sequential(nn.Flatten(), nn.Linear(12288, 2))
x = torch.rand(100, 3, 64, 64)
expected = MixupInference(model, pool, chunk=100)(x, index=torch.arange(100))
status = open("/proc/self/status").read()
size = 1024 * int(re.search(r"VmSize:\\s+(\\d+) kB", status)[1])
resource.setrlimit(resource.RLIMIT_AS, (size + 2**27, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    mi = MixupInference(model, pool, chunk=3000)
    found = mi(x, index=torch.arange(100))
assert "memory ran out with chunks of 3,000" in str(seen[0].message), seen
assert mi.chunk < 3000
torch.testing.assert_close(found, expected)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit that only Linux keeps")
def test_memory_that_really_runs_out():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
