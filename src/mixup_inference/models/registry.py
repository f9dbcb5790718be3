"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.small_cnn import SmallCNN

MODELS: Mapping[str, Callable[..., nn.Module]] = {"small_cnn": SmallCNN}


def create_model(
    name: str, *, classes: int, channels: int = 3, seed: int = 0, **settings: Any
) -> nn.Module:
    """A network with fresh weights that depend on ``seed`` only; the global state is untouched.

    >>> create_model("small_cnn", classes=10, channels=1).config["name"]
    'small_cnn'
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = MODELS[name](classes=classes, channels=channels, **settings)
        except TypeError as error:
            raise InputError(f"the model {name!r} does not take {settings}: {error}.") from None
    # What it takes to build the same network again; it travels with the weights.
    config = {"name": name, "classes": classes, "channels": channels, **settings}
    object.__setattr__(model, "config", config)
    return model
