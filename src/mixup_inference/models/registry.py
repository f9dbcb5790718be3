"""Networks by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.resnet import (
    OfficialResNet50,
    PreActResNet18,
    ResNet20,
    ResNet32,
    ResNet44,
    ResNet56,
)
from mixup_inference.models.small import FastResNet, SmallCNN

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "small_cnn": SmallCNN,
    "fast_resnet": FastResNet,
    "resnet20": ResNet20,
    "resnet32": ResNet32,
    "resnet44": ResNet44,
    "resnet56": ResNet56,
    "preact_resnet18": PreActResNet18,
    "official_resnet50": OfficialResNet50,
}


def create_model(
    name: str,
    num_classes: int,
    *,
    channels: int = 3,
    size: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> nn.Module:
    """A network with fresh weights that depend on ``seed`` only; the global state is untouched.

    Settings that every network takes: ``mean`` and ``std`` of the pixels, which it normalises by.
    ``size`` is the side of the images it is meant for; all networks here take any side, so it is
    only kept for whoever loads the weights.

    >>> create_model("small_cnn", 10, channels=1).config["name"]
    'small_cnn'
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = MODELS[name](classes=num_classes, channels=channels, **settings)
        except TypeError as error:
            raise InputError(f"the model {name!r} does not take {settings}: {error}.") from None
    # What it takes to build the same network again; it travels with the weights.
    config = {"name": name, "num_classes": num_classes, "channels": channels, **settings}
    config |= {} if size is None else {"size": size}
    object.__setattr__(model, "config", config)
    return model


def closest_model(weights: Mapping[str, Tensor]) -> str | None:
    """The name of the network that shares the most parameters (names and shapes) with these.

    None when no network shares as much as half of them.
    """
    theirs = {(name, tuple(tensor.shape)) for name, tensor in weights.items()}
    matrices = [tensor for tensor in weights.values() if tensor.ndim == 2]
    classes = matrices[-1].shape[0] if matrices else 10
    shares = {}
    for name, build in MODELS.items():
        with torch.device("meta"):
            own = build(classes=classes, channels=3).state_dict()
        ours = {(key, tuple(tensor.shape)) for key, tensor in own.items()}
        shares[name] = len(ours & theirs) / max(len(ours), len(theirs), 1)
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= 0.5 else None


def import_model(name: str, num_classes: int, **settings: Any) -> nn.Module:
    """The network that ``package.module:factory`` names; this runs the user's own code.

    The factory is called with the settings, and with ``num_classes`` if it takes that. A network
    that is already built is taken as it is. Modules are also looked for in the working folder,
    after the installed ones: a folder that came from elsewhere cannot take their place.
    """
    module_name, _, attribute = name.partition(":")
    path_before = sys.path.copy()
    sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        model = found if isinstance(found, nn.Module) else _call(found, num_classes, settings)
    except Exception as error:
        raise InputError(
            f"cannot build the model {name!r}: {type(error).__name__}: {error}. It must be "
            "package.module:factory, a function without required arguments (but num_classes) "
            "that returns an nn.Module."
        ) from error
    finally:
        sys.path[:] = path_before
    if not isinstance(model, nn.Module):
        raise InputError(f"{name} must return an nn.Module; it returned {type(model).__name__}.")
    return model.eval()


def _call(factory: Callable[..., Any], num_classes: int, settings: dict[str, Any]) -> Any:
    parameters = inspect.signature(factory).parameters
    takes_any = inspect.isfunction(factory) and any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )
    if "num_classes" in parameters or takes_any:
        settings = {"num_classes": num_classes, **settings}
    return factory(**settings)
