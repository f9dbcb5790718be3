"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.models.base import ImageClassifier, Scale
from mixup_inference.models.resnet import CifarResNet, OfficialResNet50, PreActResNet18
from mixup_inference.models.small import FastResNet, SmallCNN
from mixup_inference.registry import Registry, import_attribute, importing_from_here


@dataclass(frozen=True)
class NetworkEntry:
    """A network in the registry.

    Attributes:
        name: in specs, on the command line and in checkpoints.
        factory: builds it from keywords, or is the network itself. It gets the number of classes
            as ``classes`` or ``num_classes`` and those of the images as ``channels``, if it takes
            them.
        fixed: settings that belong to the name.
    """

    name: str
    factory: Callable[..., nn.Module] | nn.Module
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> set[str]:
        """What a user may set, beside classes and channels."""
        ours = isinstance(self.factory, type) and issubclass(self.factory, ImageClassifier)
        scale = Scale.__annotations__.keys() if ours else set()
        given = {"scale", "classes", "num_classes", "channels", *self.fixed}
        return (self._parameters | scale) - given

    @property
    def _parameters(self) -> set[str]:
        parameters = inspect.signature(self.factory).parameters
        any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        takes_any = any_name and inspect.isfunction(self.factory)
        return {*parameters} | ({"num_classes"} if takes_any else set())

    def __call__(self, **settings: Any) -> nn.Module:
        """Build it with exactly these settings."""
        if isinstance(self.factory, nn.Module):
            return self.factory
        return self.factory(**self.fixed, **settings)

    def build(self, num_classes: int, settings: dict[str, Any], **shape: Any) -> nn.Module:
        """Build it for a number of classes, and for the shape of the images as far as it asks."""
        shape |= {"classes": num_classes, "num_classes": num_classes}
        return self(**{k: shape[k] for k in shape.keys() & self._parameters} | settings)


NETWORKS: Registry[NetworkEntry] = Registry("network", NetworkEntry)
MODELS = NETWORKS

NETWORKS.add(NetworkEntry("small_cnn", SmallCNN))
NETWORKS.add(NetworkEntry("fast_resnet", FastResNet))
for depth in (20, 32, 44, 56):
    NETWORKS.add(NetworkEntry(f"resnet{depth}", CifarResNet, fixed={"depth": depth}))
NETWORKS.add(NetworkEntry("preact_resnet18", PreActResNet18))
NETWORKS.add(NetworkEntry("official_resnet50", OfficialResNet50))


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
    entry = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = entry.build(num_classes, settings, channels=channels)
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
    for name, entry in NETWORKS.items():
        with suppress(Exception), torch.device("meta"):  # a user's own may need more
            own = entry.build(classes, {}, channels=3).state_dict()
            ours = {(key, tuple(tensor.shape)) for key, tensor in own.items()}
            shares[name] = len(ours & theirs) / max(len(ours), len(theirs), 1)
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= 0.5 else None


def import_model(name: str, num_classes: int, **settings: Any) -> nn.Module:
    """The network at ``package.module:factory``, in eval mode; this runs the user's own code.

    The factory is called with the settings, and with ``num_classes`` if it takes that. A network
    that is already built is taken as it is.
    """
    entry = NetworkEntry(name, import_attribute(name, NETWORKS.kind))
    try:
        with importing_from_here():
            model = entry.build(num_classes, settings)
    except Exception as error:
        raise InputError(
            f"cannot build the network {name!r}: {type(error).__name__}: {error}. It must be "
            "package.module:factory, a function without required arguments (but num_classes) "
            "that returns an nn.Module."
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{name} must return an nn.Module; it returned {type(model).__name__}.")
    return model.eval()
