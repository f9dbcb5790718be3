"""A defence, or any classifier, as attacks query it: K draws per image, every pass counted.

The query model decides for every attack what one draw is, where its randomness comes from, and what
it costs. An attack never sees the draws on which its success is evaluated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mixup_inference.defenses import Defense, mean_prediction
from mixup_inference.draws import derive_seed
from mixup_inference.errors import unknown_name
from mixup_inference.models.call import (
    Passes,
    check_model,
    eval_mode,
    logits_of,
    overridden,
    refuse_probabilities,
)
from mixup_inference.models.folding import faster, pays

Kind = Literal["ours", "frozen", "fixed", "rows", "call"]

#: Calls that find out whether a module's answers are random.
_PROBES = 8


class QueryModel:
    """The model under attack.

    One draw of a defence of ours is one transformed copy of the image through F (its ``draw``);
    one draw of another module is one answer. A module without randomness has one draw, however
    many are asked for, and so has a frozen defence (``fresh=False``), whose answer averages its
    own draws. Modules that are not ours draw from the global generators, which are seeded for each
    query and restored afterwards; a module in eval mode keeps those of its parts that are in
    training mode, such as dropout that is meant to be random.

    Args:
        module: a defence, or any classifier that returns logits or log-probabilities.
        x: some images, to find out whether the answers are random.
        seed: of the attack's draws, together with the names of their streams.
    """

    def __init__(self, module: nn.Module, x: Tensor, *, seed: int = 0) -> None:
        self.module = check_model(module)
        self.seed = seed
        if isinstance(module, Defense):
            module.prepare()  # not a cost of the attack
        self._probe = x[:4]
        self.passes = Passes()

    @cached_property
    def kind(self) -> Kind:
        """Where randomness comes from: our draws, none, or new for each row or for each call.

        A module that draws from a global generator is random, even if its answers happen to be the
        same; one that does not may still have a generator of its own.
        """
        module, x = self.module, self._probe
        if isinstance(module, Defense):
            return "ours" if module.fresh else "frozen"
        with torch.no_grad(), seeded(0, module, x):
            before = _states()
            pairs = [_answer(module, torch.cat([x, x])).chunk(2) for _ in range(_PROBES)]
            draws = _states() != before

        def same(a: Tensor, b: Tensor) -> bool:
            return torch.allclose(a, b, rtol=1e-4, atol=1e-5)

        if not all(same(a, b) for a, b in pairs):
            return "rows"
        return "call" if draws or not all(same(a, pairs[0][0]) for a, _ in pairs) else "fixed"

    @property
    def is_random(self) -> bool:
        """Whether the same image can get different answers."""
        return self.kind not in ("frozen", "fixed")

    def images(self, draws: int) -> int:
        """Return how many images per point pass through F at once in a query of so many draws."""
        if self.kind == "frozen":
            assert isinstance(self.module, Defense)
            return len(self.module.numbers(self._probe).k)
        return draws if self.is_random else 1

    def log_probs(self, x: Tensor, index: Tensor, draws: int | None, *stream: str | int) -> Tensor:
        """Return log-probabilities draw by draw, shape (points, draws, classes).

        The draws of a point depend on the attack's seed, the names of the stream and, for our
        defences, the point's index; not on the batch (for other modules, on the whole batch).
        Without ``draws`` it is the module's own answer in eval mode, with draws of its own choice.
        """
        if draws is None:
            return torch.log_softmax(logits_of(self.module, x), dim=1)[:, None]
        if self.kind == "ours":
            assert isinstance(self.module, Defense)
            name = repr(("attack", self.seed, *stream))
            with eval_mode(self.module):
                return self.module.draw(x, draws, index=index, stream=name)
        if not self.is_random:
            return _answer(self.module, x)[:, None]
        with seeded(derive_seed(self.seed, "attack", *stream, int(index[0])), self.module, x):
            if self.kind == "rows":
                out = _answer(self.module, x.repeat_interleave(draws, dim=0))
                return out.view(x.shape[0], draws, -1)
            return torch.stack([_answer(self.module, x) for _ in range(draws)], dim=1)


class Averaged(nn.Module):
    """The log of the mean prediction over K draws, new at every call, as a plain module.

    With it any attack library can attack the expectation. The draws are the attack's own streams.
    """

    def __init__(self, module: nn.Module, x: Tensor, *, draws: int, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.draws = draws
        self._query = QueryModel(module, x, seed=seed)
        self.is_random = self._query.is_random
        self._calls = 0
        self.training = False

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002, FBT001, FBT002 (torch's signature)
        """Do nothing: libraries call this, and random parts must stay random."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, shape (batch, classes)."""
        self._calls += 1
        index = torch.arange(x.shape[0], device=x.device)
        log_p = self._query.log_probs(x, index, self.draws, "averaged", self._calls)
        return mean_prediction(log_p)


class Frozen(nn.Module):
    """A random module that is not ours, with its randomness removed.

    Every image gets the draws that it would get alone after seeding the global generators, so
    images pass one at a time. Defences of ours inside are frozen too. A module with a generator of
    its own stays random.
    """

    def __init__(self, module: nn.Module, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.seed = seed
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, shape (batch, classes)."""
        inside = [part for part in self.module.modules() if isinstance(part, Defense)]
        out = []
        with overridden(inside, "fresh", value=False):
            for image in x.split(1):
                with seeded(self.seed, self.module, x):
                    out.append(_answer(self.module, image))
        return torch.cat(out)


def freeze(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Remove a module's randomness: the model that an attacker who knows the seed is up against."""
    if isinstance(module, Defense):
        return module.frozen()
    return Frozen(module, seed)


@contextmanager
def other_generators_kept() -> Iterator[None]:
    """Restore Python's and NumPy's global generators afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def seeded(seed: int, module: nn.Module, x: Tensor) -> Iterator[None]:
    """Seed everything that a module can draw from, and restore it afterwards.

    That is the global generators of torch, NumPy and Python, and the call counters of defences of
    ours inside the module.
    """
    inside = [part for part in module.modules() if isinstance(part, Defense)]
    with (
        torch.random.fork_rng([x.device] if x.is_cuda else []),
        other_generators_kept(),
        overridden(inside, "calls", seed),
    ):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        yield


@contextmanager
def lent(module: nn.Module, seed: int, x: Tensor) -> Iterator[None]:
    """Lend a module to code of others, seeded; restore it and all generators afterwards.

    It is in eval mode, and its weights take no gradients.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    with (
        overridden(weights, "requires_grad", value=False),
        eval_mode(module) if module.training else nullcontext(),
        seeded(seed, module, x),
        torch.enable_grad(),
    ):
        yield


def base_of(module: nn.Module) -> nn.Module:
    """Return F: the model inside the first defence of ours in a module, or the module itself."""
    for part in module.modules():
        if isinstance(part, Defense):
            return part.model
    return module


def _answer(module: nn.Module, x: Tensor) -> Tensor:
    out = logits_of(module, x, as_it_is=True)
    refuse_probabilities(out)
    return torch.log_softmax(out, dim=1)


def _states() -> tuple[bytes, str, str]:
    """Return the states of the global generators, for comparison."""
    others = repr(random.getstate()), repr(np.random.get_state())  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), *others


#: Of an attack's own passes through F, in Lightning Fabric's words.
Precision = Literal["32-true", "bf16-mixed"]


def accelerate(
    model: nn.Module, x: Tensor, *, images: int, precision: Precision = "32-true"
) -> nn.Module:
    """Put the model or defence around a folded copy of F, if that pays for so many images.

    Only if F has no randomness, which a copy might lose. With the precision "bf16-mixed" the copy
    and its gradients are computed in bfloat16, unless that changes F's answers: 1.5 to 2 times as
    fast on processors that support it, and most signs of a gradient stay the same. Success is to be
    evaluated on the model itself.
    """
    if precision not in (known := get_args(Precision)):
        raise unknown_name("precision", precision, known)
    defense = model if isinstance(model, Defense) else None
    base = check_model(model) if defense is None else defense.model
    images *= 1 if defense is None else defense.draws
    if not pays(base, images=images) or QueryModel(base, x).is_random:
        return model
    folded = faster(base, x, images=images, rounds=precision == "bf16-mixed")
    if folded is base:
        return model
    return folded if defense is None else defense.with_model(folded)
