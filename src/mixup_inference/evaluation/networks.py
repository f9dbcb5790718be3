"""The networks of an experiment: built afresh to be trained, or brought along ready."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from mixup_inference.classifier import logits_of, refuse_probabilities
from mixup_inference.datasets import LabelledImages
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation.accuracy import evaluate
from mixup_inference.evaluation.spec import NetworkSpec
from mixup_inference.files import fingerprint
from mixup_inference.models import (
    Normalized,
    create_model,
    from_pretrained,
    import_model,
    load_weights,
    read_checkpoint,
    weights_file,
)
from mixup_inference.timing import Stage, timed

#: So many training images tell whether a model that was brought along works at all.
TRIAL = 200


def build_network(
    network: NetworkSpec, *, classes: int, channels: int, size: int | None = None, seed: int = 0
) -> nn.Module:
    """A network of the registry with fresh weights, or the user's own as their function made it."""
    settings = dict(network.model_extra or {})
    classes = network.classes or classes
    if not network.is_foreign:
        return create_model(
            network.name, classes, channels=channels, size=size, seed=seed, **settings
        )
    scale = {name: settings.pop(name, default) for name, default in (("mean", 0.0), ("std", 1.0))}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner = import_model(network.name, classes, **settings)
    return Normalized(inner, channels=channels, **scale)


@timed(Stage.LOADING)
def bring_model(
    network: NetworkSpec | None, weights: str | None, points: LabelledImages
) -> nn.Module:
    """A model that needs no training: weights in a network, or a checkpoint that has both.

    It is tried on a few images, with a warning when it does no better than chance.
    """
    if network is None:
        assert weights is not None
        model = from_pretrained(weights)
    elif weights is not None and (ours := _header(weights)):
        _agrees(network, ours, weights)
        model = from_pretrained(weights)
    else:
        model = build_network(network, classes=points.classes, channels=points.images.shape[1])
        if weights is not None:
            load_weights(model.model if isinstance(model, Normalized) else model, weights)
    model.float().eval()
    _try(model, points)
    return model


def _header(weights: str) -> dict[str, Any] | None:
    """The architecture in a checkpoint of ours; None for other people's files."""
    try:
        _, header = read_checkpoint(weights_file(weights))
    except InputError:
        return None
    config = header.get("architecture")
    return config if isinstance(config, dict) else None


def _agrees(network: NetworkSpec, config: dict[str, Any], weights: str) -> None:
    """What is said of the network must not contradict what the checkpoint says of itself."""
    said = {"name": network.name, **(network.model_extra or {})}
    for name, value in said.items():
        if name in config and fingerprint(config[name]) != fingerprint(value):
            raise InputError(
                f"{weights} says that its {name} is {config[name]}, not {value}. Leave it out: a "
                "checkpoint of ours brings its network and normalisation along."
            )


def _try(model: nn.Module, points: LabelledImages) -> None:
    sample = points.take(torch.arange(len(points))[:: max(1, len(points) // TRIAL)][:TRIAL])
    shape = tuple(points.images.shape[1:])
    try:
        with torch.no_grad():
            out = logits_of(model, sample.take(torch.arange(2)).pixels)
    except InputError:
        raise
    except Exception as error:  # every library says in its own way that a size is wrong
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the model does not take images of {shape[0]} channels and {shape[1]}x{shape[2]} "
            f"pixels ({words}). Give the data the model's number of channels (1 or 3) and its "
            "size."
        ) from error
    refuse_probabilities(out)
    if out.shape[1] < points.classes:
        raise InputError(
            f"the model predicts {out.shape[1]} classes, but the data set has {points.classes}."
        )
    accuracy = evaluate(model, sample.images, sample.labels, batch_size=32)
    if accuracy.interval[0] <= 1 / points.classes:
        warnings.warn(
            f"the model classifies only {accuracy.correct} of {accuracy.total} training images "
            "correctly, no better than chance. Is the normalisation right (mean, std)? Are the "
            "classes in the same order?",
            MixupInferenceWarning,
            stacklevel=2,
        )


def side_of(points: LabelledImages) -> int | None:
    """The side of square images."""
    height, width = points.images.shape[-2:]
    return int(height) if height == width else None


def network_identity(network: NetworkSpec | None) -> Any:
    """A network spec as JSON."""
    return network and network.model_dump(mode="json", exclude_none=True)
