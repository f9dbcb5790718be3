"""Several processes for an experiment: they train together, then the first goes on alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch import distributed

from mixup_inference.evaluation import Experiment
from mixup_inference.evaluation.places import check_device
from mixup_inference.training import make_fabric

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mixup_inference.cli import Common, Processes


def open_fabric(common: Common, processes: Processes) -> Fabric | None:
    """What the options ask for; None for one process that trains in full precision."""
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


def train_together(experiment: Experiment) -> None:
    """Train all models of the experiment, in every process; then they part."""
    for name in experiment.spec.models:
        if experiment.spec.is_trained(name):
            experiment.model(name)
    if distributed.is_initialized():
        distributed.destroy_process_group()
