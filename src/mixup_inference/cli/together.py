"""Several processes for an experiment: they train, attack and measure together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import distributed

from mixup_inference.evaluation.places import check_device
from mixup_inference.training import make_fabric

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mixup_inference.cli import Common, Processes


@contextmanager
def together(common: Common, processes: Processes | None) -> Iterator[Fabric | None]:
    """What connects the processes that the options ask for, for as long as the context lasts.

    None for one process that trains in full precision.
    """
    fabric = None if processes is None else _open(common, processes)
    try:
        yield fabric
    finally:
        if fabric is not None and distributed.is_initialized():
            distributed.destroy_process_group()


def _open(common: Common, processes: Processes) -> Fabric | None:
    one = processes.devices in (None, 1) and processes.nodes in (None, 1)
    plain = processes.precision == "32-true" and processes.strategy == "auto"
    if one and plain and not distributed.is_torchelastic_launched():
        return None
    import lightning_fabric  # noqa: PLC0415 (takes seconds to import)

    logging.getLogger(lightning_fabric.__name__).setLevel(logging.WARNING)
    return make_fabric(
        check_device(common.device),
        devices=processes.devices,
        nodes=processes.nodes,
        precision=processes.precision,
        strategy=processes.strategy,
    )
