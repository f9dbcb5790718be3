"""Trainings for one process or several: run as a script, by torchrun or with a number of devices.

Every process trains; the first writes what came out, and the states that it began with.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn

from mixup_inference import InputError, create_model, train
from mixup_inference.training import OBJECTIVES, Recipe, learning_rate, loop, make_fabric

#: Three steps an epoch of 16, 15 and 15 images, which two and three processes share unevenly. The
#: inner attack sees enough images for a folded copy.
RECIPE = Recipe(objective="iat", epochs=2, batch_size=16, lr=0.05, schedule="one-cycle", eps=0.1,
                step=0.02, steps=11, flip=True, crop_padding=1)  # fmt: skip


def data(count):
    generator = torch.Generator().manual_seed(count)
    y = torch.arange(count) % 10
    x = torch.rand(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return (x + 0.1 * y[:, None, None, None]).clamp(0, 1), y


DATA, VALIDATION = data(46), data(1100)


def network(seed=0, dropout=0.0):
    """With batch norms of two and of four dimensions, one with a cumulative average."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm, last = nn.BatchNorm1d(12, momentum=None), nn.Linear(12, 10)
        first = create_model("small_cnn", 12, channels=1, width=4, seed=seed)
        return nn.Sequential(first, norm, nn.Dropout(dropout), last).double()


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


def outcome(model, history):
    numbers = [(e.loss, e.accuracy, e.validation_accuracy or 0.0) for e in history]
    return {"weights": weights(model), "history": torch.tensor(numbers)}


def trained(recipe, fabric=None, *, seed=0, dropout=0.0, **options):
    model = network(seed, dropout)
    return outcome(model, train(model, *DATA, recipe, fabric=fabric, **options))


class StopError(Exception):
    pass


def stopped(recipe, folder, *, after, fabric=None):
    """A training whose processes all stop after some steps."""
    left = iter(range(after))

    def rate(*step):
        if next(left, None) is None:
            raise StopError
        return learning_rate(*step)

    with patch.object(loop, "learning_rate", rate), pytest.raises(StopError):
        trained(recipe, fabric, folder=folder, save_every=0)


def same_everywhere(fabric, tensor):
    """Whether all processes hold the same numbers."""
    parts = [torch.empty_like(tensor) for _ in range(fabric.world_size)]
    distributed.all_gather(parts, tensor)
    return all(torch.equal(part, tensor) for part in parts)


def main(out, devices=None):
    fabric = make_fabric(devices=devices)
    rank, found = fabric.global_rank, {}
    for objective in OBJECTIVES:
        recipe = replace(RECIPE, objective=objective)
        found[objective] = trained(recipe, fabric, seed=rank, validation=VALIDATION)
        assert same_everywhere(fabric, found[objective]["weights"])
        assert same_everywhere(fabric, found[objective]["history"])
    with patch.object(loop, "joint_batch_norm", lambda _: nullcontext()):
        found["apart"] = trained(replace(RECIPE, objective="erm"), fabric)
    found["resumed"] = trained(RECIPE, fabric, folder=out / "by one")
    for name in ("again", "by several"):
        stopped(RECIPE, out / name, after=2, fabric=fabric)
    again = trained(RECIPE, fabric, folder=out / "again")
    assert torch.equal(again["weights"], found["iat"]["weights"])  # to the last bit
    random = [trained(RECIPE, fabric, dropout=0.5)["weights"] for _ in range(2)]
    assert torch.equal(*random)
    assert same_everywhere(fabric, random[0])

    for words, recipe in (
        ("different data, networks or recipes", replace(RECIPE, seed=rank)),
        ("another training", replace(RECIPE, lr=0.2)),
        ("cannot share a batch of 2 images", replace(RECIPE, batch_size=2)),
    ):
        if fabric.world_size > 2 or "share" not in words:
            with pytest.raises(InputError, match=words):
                trained(recipe, fabric, folder=out / "by one")
    if fabric.is_global_zero:
        torch.save(found, out / "found.pt")
    fabric.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
