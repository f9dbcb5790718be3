"""Training against a plain PyTorch loop of the same objective."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.inference import data, network
from benchmarks.measure import ratio, take_turns
from mixup_inference import train
from mixup_inference.training import OBJECTIVES, Recipe

BATCH, EPS, STEP, STEPS, LR, MOMENTUM = 64, 8 / 255, 2 / 255, 10, 0.01, 0.9
#: The networks, and how many images a training without an inner attack and one with it sees.
NETWORKS = {"small_cnn": (320, 128), "resnet20": (256, 128)}


def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """PGD on the model in eval mode."""
    model.eval()
    image = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
    for _ in range(STEPS):
        image.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(image), y), image)
        image = image.detach() + STEP * gradient.sign()
        image = torch.min(torch.max(image, x - EPS), x + EPS).clamp(0, 1)
    model.train()
    return image


def mixed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of mixup, with one ratio for the batch."""
    lam = torch.distributions.Beta(1.0, 1.0).sample()
    other = torch.randperm(len(x))
    logits = model(lam * x + (1 - lam) * x[other])
    return lam * cross_entropy(logits, y) + (1 - lam) * cross_entropy(logits, y[other])


def loss_of(objective: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What one step minimises."""
    if objective == "erm":
        return cross_entropy(model(x), y)
    if objective == "mixup":
        return mixed(model, x, y)
    images = attack(model, x, y)
    if objective == "at":
        return cross_entropy(model(torch.cat((images, x))), torch.cat((y, y)))
    return (mixed(model, images, y) + mixed(model, x, y)) / 2


def plain(model: nn.Module, x: Tensor, y: Tensor, objective: str) -> None:
    """One epoch, as it is usually written."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    model.train()
    for index in torch.randperm(len(x)).split(BATCH):
        loss = loss_of(objective, model, x[index], y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def against_a_plain_loop(rounds: int) -> dict[str, Any]:
    """The plain loop's time over ours, for each network and objective; and our images a second."""
    out: dict[str, Any] = {}
    for name, (many, few) in NETWORKS.items():
        out[name] = {}
        for objective in ("erm", "mixup", "at", "iat"):
            count = few if OBJECTIVES[objective].adversarial else many
            x, _ = data(count)
            y = torch.arange(count) % 10
            recipe = Recipe(
                objective=objective, epochs=1, batch_size=BATCH, lr=LR, momentum=MOMENTUM,
                eps=EPS, step=STEP, steps=STEPS,
            )  # fmt: skip
            jobs = {
                "ours": partial(train, network(name), x, y, recipe),
                "plain": partial(plain, network(name), x, y, objective),
            }
            spent = take_turns(jobs, rounds)
            each_second = [count / seconds for seconds in spent["ours"]]
            out[name][objective] = {
                "faster": ratio(spent["plain"], spent["ours"]),
                "images_a_second": ratio(each_second, [1.0] * rounds),
            }
    return out
