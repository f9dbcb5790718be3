"""Several processes that train one model: starting them, checking them, summing over them.

Each takes a part of every batch. Randomness is keyed to samples, so results do not depend on how
samples are assigned to processes.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.call import unwrap
from mixup_inference.training.recipe import PRECISIONS, Precision, Recipe
from mixup_inference.utils.distributed import join_restarted
from mixup_inference.validation import check_int

if TYPE_CHECKING:
    from lightning_fabric import Fabric


STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


def make_fabric(
    device: str = "cpu",
    *,
    devices: int | None = None,
    nodes: int | None = None,
    precision: str | None = None,
    strategy: str = "auto",
) -> Fabric:
    """A launched ``Fabric`` for ``train``: this process, or several on one or more machines.

    Under ``torchrun`` the processes are there already and are counted. Otherwise the script is
    started once more for each further device, as Fabric does.

    Args:
        device: "cpu", "cuda", "mps".
        devices: processes on each machine; as many as ``torchrun`` started, or 1.
        nodes: machines; as many as ``torchrun`` runs on, or 1.
        precision: "32-true", the default, computes in the precision of the weights; "bf16-mixed"
            and "16-mixed" (on a GPU) compute in 16 bits where that is safe, the inner attack in
            bf16-mixed only.
        strategy: "ddp", which "auto" takes for several processes;
            "ddp_find_unused_parameters_true" if parts of the network may go unused.
    """
    if precision not in (None, *PRECISIONS):
        raise unknown_name("precision", precision, PRECISIONS)
    if strategy not in STRATEGIES:
        raise unknown_name("strategy", strategy, STRATEGIES)
    there = _torchrun()
    if there != (None, None) and not distributed.is_initialized():
        join_restarted("nccl" if device == "cuda" else "gloo")  # Fabric finds it there
    devices, nodes = (
        _agreed(name, asked, started)
        for name, asked, started in zip(("devices", "nodes"), (devices, nodes), there, strict=True)
    )
    return _launched(device, precision, devices=devices, num_nodes=nodes, strategy=strategy)


def one_process(recipe: Recipe, device: str = "cpu") -> Fabric:
    """A ``Fabric`` that trains a recipe in this process alone."""
    return _launched(device, recipe.precision, devices=1, strategy="auto")


def _launched(device: str, precision: str | None, **settings: Any) -> Fabric:
    """Launch a ``Fabric`` without its announcements."""
    import lightning_fabric  # noqa: PLC0415 (takes seconds to import)

    if precision == "16-mixed" and device == "cpu":
        raise InputError("16-mixed needs a GPU; a CPU computes in bf16-mixed.")
    logger = logging.getLogger(lightning_fabric.__name__)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        fabric = lightning_fabric.Fabric(
            accelerator=device,
            precision=precision or "32-true",  # type: ignore[arg-type]
            **settings,
        )
        fabric.launch()
    finally:
        logger.setLevel(level)
    return fabric


def in_precision_of(fabric: Fabric | None, recipe: Recipe) -> Recipe:
    """The recipe with the Fabric's precision, if it leaves that to the Fabric."""
    precision = "32-true" if fabric is None else fabric.strategy.precision.precision
    if recipe.precision is not None or precision not in PRECISIONS[1:]:
        return recipe
    return replace(recipe, precision=cast("Precision", precision))


def _torchrun() -> tuple[int, int] | tuple[None, None]:
    """Processes on each machine, and machines, if ``torchrun`` started us."""
    if not distributed.is_torchelastic_launched():
        return None, None
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    return each, int(os.environ["WORLD_SIZE"]) // each


def _agreed(name: str, asked: int | None, started: int | None) -> int:
    if asked is not None:
        check_int(asked, what=name, least=1)
    if asked is not None and started is not None and asked != started:
        raise InputError(f"torchrun started {name} = {started}, and {asked} are asked for.")
    return asked or started or 1


def check_fabric(fabric: Fabric, recipe: Recipe, smallest_batch: int) -> None:
    """Refuse a Fabric that cannot train this recipe."""
    from lightning_fabric.strategies.ddp import DDPStrategy  # noqa: PLC0415 (slow to import)
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy  # noqa: PLC0415

    if not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise InputError(
            f"cannot train with {type(fabric.strategy).__name__}: the inner attack and the "
            "checkpoints need the whole network on every device. Use strategy = 'ddp'."
        )
    precision = fabric.strategy.precision.precision
    if recipe.precision not in (None, precision):
        raise InputError(
            f"the recipe asks for {recipe.precision}, but the Fabric has {precision}. Several "
            "processes train in one precision: give it as --precision, or train alone."
        )
    if fabric.world_size > 1 and not distributed.is_initialized():
        raise InputError("several processes are asked for: call fabric.launch() before training.")
    if fabric.world_size > smallest_batch:
        raise InputError(
            f"{fabric.world_size} processes cannot share a batch of {smallest_batch} images; "
            "enlarge batch_size."
        )


def check_agreement(fabric: Fabric, identity: str) -> None:
    """Stop all processes if one of them has other data, another network or another recipe."""
    if fabric.world_size == 1:
        return
    differs = torch.tensor([float(fabric.broadcast(identity) != identity)], device=fabric.device)
    if float(summed(fabric, differs)) > 0:
        raise InputError("the processes were given different data, networks or recipes.")


def warm_up(fabric: Fabric, model: Any, x: Tensor) -> None:
    """Make one pass without effect.

    DDP rearranges its gradient buckets after the first pass, and they determine the order in which
    three or more numbers are added. With this pass a resumed training adds in the same order.
    """
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices=[fabric.device] if fabric.device.type == "cuda" else []):
        model.train()
        fabric.backward(0 * unwrap(model(x)).sum())
    model.zero_grad()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])


def summed(fabric: Fabric, x: Tensor) -> Tensor:
    """Sum over all processes, in place."""
    if fabric.world_size > 1:
        distributed.all_reduce(x)
    return x
