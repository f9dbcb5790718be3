"""Several processes for an experiment: they train, attack and measure together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import distributed

from mixup_inference.evaluation import Spec
from mixup_inference.evaluation.places import check_device
from mixup_inference.training import make_fabric

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mixup_inference.cli import Common, Processes


@contextmanager
def together(spec: Spec, common: Common, processes: Processes | None) -> Iterator[Fabric | None]:
    """What connects the processes that the options ask for, for as long as the context lasts.

    None for one process.
    """
    fabric = None if processes is None else _open(spec, common, processes)
    try:
        yield fabric
    finally:
        if fabric is not None and distributed.is_initialized():
            distributed.destroy_process_group()


def _open(spec: Spec, common: Common, processes: Processes) -> Fabric | None:
    one = processes.devices in (None, 1) and processes.nodes in (None, 1)
    if one and processes.strategy == "auto" and not distributed.is_torchelastic_launched():
        return None
    trained = [spec.recipe(name) for name in spec.models if spec.is_trained(name)]
    precisions = {recipe.precision or "32-true" for recipe in trained}
    return make_fabric(
        check_device(common.device),
        devices=processes.devices,
        nodes=processes.nodes,
        precision=precisions.pop() if len(precisions) == 1 else None,
        strategy=processes.strategy,
    )
