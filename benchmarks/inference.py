"""Mixup inference against as many plain forward passes, the double loop, and other engines."""

from __future__ import annotations

import importlib.util
import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Job, ratio, take_turns
from mixup_inference import MixupInference, Pool, create_model
from mixup_inference.models.folding import fold

DRAWS = 30
BATCHES = (16, 32, 64, 256)
#: The networks, and how many images are classified in one measurement.
NETWORKS = {"small_cnn": 64, "resnet20": 32, "official_resnet50": 8}


def network(name: str) -> nn.Module:
    """A network with weights as they are made; times do not depend on them."""
    torch.manual_seed(0)
    return create_model(name, 10, channels=3).eval()


def data(count: int) -> tuple[Tensor, Pool]:
    """Images to classify, and a pool of 8-bit images like CIFAR-10's."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return torch.rand(count, 3, 32, 32, generator=generator), Pool(images, torch.arange(5000) % 10)


@torch.no_grad()
def plain(model: nn.Module, images: Tensor, batch: int) -> None:
    """As many forward passes as mixup inference makes, and nothing else."""
    for part in images.split(batch):
        model(part)


@torch.no_grad()
def double_loop(model: nn.Module, pool: Pool, x: Tensor, lam: float = 0.5) -> Tensor:
    """One image after the other and one draw after the other, as the published code does it."""
    answers = []
    for image in x.split(1):
        label = int(model(image).argmax())
        total = torch.zeros(1, pool.classes)
        for _ in range(DRAWS):
            other = label
            while other == label:
                other = int(torch.randint(pool.classes, ()))
            members = (pool.labels == other).nonzero().flatten()
            number = members[torch.randint(len(members), ())]
            clean = pool.images[number][None] / 255
            total += model(lam * image + (1 - lam) * clean).softmax(1)
        answers.append(total / DRAWS)
    return torch.cat(answers)


def in_batches(defense: MixupInference, x: Tensor, batch: int) -> None:
    """Classify so many images a call."""
    for part in x.split(batch):
        defense(part)


def against_the_limit(rounds: int) -> dict[str, Any]:
    """Time over that of the forward passes alone, at their best batch size.

    That is found in half of the rounds and measured in the others: the fastest of several in the
    same rounds would be the luckiest, too.

    And how many times faster than the double loop: by engine and by how many images there are in a
    call; and with 9 better draws, which agree more often with very many than 30 independent ones.
    """
    out: dict[str, Any] = {}
    for name, count in NETWORKS.items():
        model = network(name)
        x, pool = data(count)
        images = x.repeat(DRAWS + 1, 1, 1, 1)
        few = x[: max(1, count // 16)]
        jobs: dict[str, Job] = {"loop": partial(double_loop, model, pool, few)}
        for engine, same in (("eager", model), ("folded", fold(model))):
            jobs |= {f"{engine} {n}": partial(plain, same, images, n) for n in BATCHES}
            defense = MixupInference(model, pool, draws=DRAWS, engine=engine)
            jobs |= {f"{engine} MI {n}": partial(in_batches, defense, x, n) for n in (1, 4, count)}
        better = MixupInference(
            model, pool, draws=9, sampling="stratified", control_variate=True, engine="folded"
        )
        better.prepare()
        jobs["better"] = partial(better, x)
        spent = take_turns(jobs, rounds)
        loop = [seconds * count / len(few) for seconds in spent["loop"]]
        out[name] = {"images": count, "better": ratio(loop, spent["better"])}
        for engine in ("eager", "folded"):
            plain_times = [spent[f"{engine} {n}"] for n in BATCHES]
            best = min(plain_times, key=lambda times: statistics.median(times[::2]))
            out[name][engine] = {
                "over_limit": ratio(spent[f"{engine} MI {count}"][1::2], best[1::2]),
                "double_loop": {
                    n: ratio(loop, spent[f"{engine} MI {n}"]) for n in sorted({1, 4, count})
                },
            }
    return out


def by_engine(rounds: int) -> dict[str, Any]:
    """Mixup inference end to end: how many times faster than eager each engine is."""
    libraries = {"onnx": "onnxruntime", "openvino": "openvino"}
    names = [name for name, lib in libraries.items() if importlib.util.find_spec(lib)]
    out = {}
    for name in ("small_cnn", "resnet20", "fast_resnet"):
        model = network(name)
        x, pool = data(32)
        jobs = {
            engine: partial(MixupInference(model, pool, draws=DRAWS, engine=engine), x)
            for engine in ("eager", "folded", *names)
        }
        spent = take_turns(jobs, rounds)
        out[name] = {
            engine: ratio(spent["eager"], spent[engine]) for engine in jobs if engine != "eager"
        }
    return out
