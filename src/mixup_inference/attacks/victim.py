"""A defence, or any classifier, as an attacker sees it: K draws for each image, every pass counted.

Three questions are answered here for every attack: what one draw is, where its randomness comes
from, and what it costs. Whatever the attack draws, it never sees the draws it is judged on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

import torch
from torch import Tensor, nn

from mixup_inference.classifier import (
    Passes,
    check_model,
    count_passes,
    eval_mode,
    logits_of,
    refuse_probabilities,
)
from mixup_inference.defenses import StochasticModule, mean_prediction
from mixup_inference.draws import derive_seed

Kind = Literal["ours", "frozen", "fixed", "rows", "call"]


class Victim:
    """What is attacked.

    One draw of a defence of ours is one transformed copy of the image through F (its ``draw``);
    one draw of another module is one answer of it. A module without randomness has one draw,
    however many are asked for, and so has a frozen defence (``fresh=False``), whose answer is
    made of its own draws. Randomness of modules that are not ours comes from torch's global
    generator, which is seeded for each look and put back afterwards; a module in eval mode keeps
    the parts of it that are in training mode, such as dropout that is meant to be random.

    Args:
        module: a defence, or any classifier that returns logits or log-probabilities.
        x: some images, to find out whether the answers are random.
        seed: of the attack's draws, together with the names of its looks.
    """

    def __init__(self, module: nn.Module, x: Tensor, *, seed: int = 0) -> None:
        self.module = check_model(module)
        self.seed = seed
        self.kind = _kind(module, x[:4])
        self.passes = Passes()

    @property
    def is_random(self) -> bool:
        """Whether the same image can get different answers."""
        return self.kind not in ("frozen", "fixed")

    def images(self, draws: int) -> int:
        """How many images go through F at once for each point, when so many draws are asked for."""
        if self.kind == "frozen":
            return int(getattr(self.module, "draws", 1))
        return draws if self.is_random else 1

    def log_probs(self, x: Tensor, index: Tensor, draws: int, *stream: str | int) -> Tensor:
        """Log-probabilities draw by draw, shape (points, draws, classes).

        The draws of a point depend on the attack's seed, the names of the stream and, for our
        defences, the point's index; not on the batch (for other modules, on the whole batch).
        """
        if self.kind == "ours":
            assert isinstance(self.module, StochasticModule)
            name = repr(("attack", self.seed, *stream))
            with eval_mode(self.module):
                return self.module.draw(x, draws, index=index, stream=name)
        if not self.is_random:
            return _answer(self.module, x)[:, None]
        with seeded(derive_seed(self.seed, "attack", *stream, int(index[0])), x.device):
            if self.kind == "rows":
                out = _answer(self.module, x.repeat_interleave(draws, dim=0))
                return out.view(x.shape[0], draws, -1)
            return torch.stack([_answer(self.module, x) for _ in range(draws)], dim=1)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the images that go through F, and those whose gradient comes back."""
        with count_passes(base_of(self.module), self.passes):
            yield


class Averaged(nn.Module):
    """The log of the mean prediction over K draws, new ones at every call, as a plain module.

    So any attack library can attack the expectation. The draws are the attacker's own streams.
    """

    def __init__(self, module: nn.Module, x: Tensor, *, draws: int, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.draws = draws
        self._victim = Victim(module, x, seed=seed)
        self._calls = 0
        self.training = False

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002, FBT001, FBT002 (torch's signature)
        """Nothing: libraries call it, and what is random inside must stay so."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, shape (batch, classes)."""
        self._calls += 1
        index = torch.arange(x.shape[0], device=x.device)
        return mean_prediction(
            self._victim.log_probs(x, index, self.draws, "averaged", self._calls)
        )


class Frozen(nn.Module):
    """A random module that is not ours, with its randomness removed.

    Every image gets the draws that it would get alone after seeding torch's generator; images
    therefore pass one at a time. Defences of ours inside are frozen too.
    """

    def __init__(self, module: nn.Module, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.seed = seed
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, shape (batch, classes)."""
        inside = [m for m in self.module.modules() if isinstance(m, StochasticModule) and m.fresh]
        for defense in inside:
            defense.fresh = False
        try:
            out = []
            for image in x.split(1):
                with seeded(self.seed, x.device):
                    out.append(_answer(self.module, image))
            return torch.cat(out)
        finally:
            for defense in inside:
                defense.fresh = True


def freeze(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """The module without its randomness: what an attacker who knows the seed is up against."""
    if isinstance(module, StochasticModule):
        return module.frozen()
    return Frozen(module, seed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, and put them back as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def base_of(module: nn.Module) -> nn.Module:
    """F: the model inside the first defence of ours in a module, or the module itself."""
    for part in module.modules():
        if isinstance(part, StochasticModule):
            return part.model
    return module


def _answer(module: nn.Module, x: Tensor) -> Tensor:
    out = logits_of(module, x, as_it_is=True)
    refuse_probabilities(out)
    return torch.log_softmax(out, dim=1)


def _kind(module: nn.Module, x: Tensor) -> Kind:
    """Ours, without randomness, or random for each row or for each call."""
    if isinstance(module, StochasticModule):
        return "ours" if module.fresh else "frozen"

    with torch.no_grad(), seeded(0, x.device):
        twice = [_answer(module, torch.cat([x, x])).chunk(2) for _ in range(2)]

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5)

    if not all(same(a, b) for a, b in twice):
        return "rows"
    return "fixed" if same(twice[0][0], twice[1][0]) else "call"
