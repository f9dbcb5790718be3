"""The networks of an experiment: built afresh to be trained, or brought along ready."""

from __future__ import annotations

import time
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixup_inference import __version__
from mixup_inference.datasets import LabelledImages
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation.evaluate import evaluate
from mixup_inference.experiments.data import Material
from mixup_inference.experiments.spec import NetworkSpec
from mixup_inference.models import (
    CONFIG,
    WEIGHTS,
    Normalized,
    check_pretrained,
    config_of,
    create_model,
    fill_weights,
    from_pretrained,
    import_model,
    load_weights,
    read_checkpoint,
    save_pretrained,
    weights_file,
)
from mixup_inference.models.call import device_of, logits_of, refuse_probabilities
from mixup_inference.training import LAST, Epoch, Recipe, in_precision_of, one_process, train
from mixup_inference.utils.io import fingerprint, hash_tensors, read_tensors
from mixup_inference.utils.profiling import Stage, timed

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


class Trained(Material):
    """The material, and models by the names that the spec has for them."""

    @cached_property
    def _models(self) -> dict[str, nn.Module]:
        return {}

    @cached_property
    def _answer_hashes(self) -> dict[str, str]:
        return {}

    def model_identity(self, name: str) -> dict[str, Any]:
        """Everything that determines a model."""
        identity = {
            "versions": _versions(),
            "device": self.device,
            "network": network_identity(self.spec.network_of(name)),
            "data": self.train_hash,  # trained on it or not, its defences draw from it
        }
        if not self.spec.is_trained(name):
            return identity | {"answers": self._answers(name)}
        network = self.spec.network_of(name)
        if network is not None and network.is_foreign:  # its code may change under its name
            identity["answers"] = self._answers(name)
        return identity | {"recipe": self.recipe(name).header()}

    def recipe(self, name: str) -> Recipe:
        """How a model is trained here."""
        return in_precision_of(self.fabric, self.spec.recipe(name))

    def training(self, name: str) -> dict[str, Any] | None:
        """How a model was trained, here or, if its checkpoint says so, elsewhere."""
        network = self.spec.network_of(name)
        if self.spec.is_trained(name):
            assert network is not None
            said = network.model_dump(exclude_none=True, exclude={"classes"})
            return {"network": said, **self.recipe(name).header()}
        card: Any = getattr(self.model(name), "card", None)
        try:
            recipe, said = Recipe.of_header(card["recipe"]), dict(card["architecture"])
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            return None
        of_data = ("num_classes", "channels", "size")
        return {"network": {k: said[k] for k in said if k not in of_data}, **recipe.header()}

    def _answers(self, name: str) -> str:
        """A hash of what the user's model answers to a few images, before any training here.

        So it is known again by what it does: by its weights and by its code.
        """
        if name not in self._answer_hashes:
            images = self.points["train"].take(torch.arange(min(8, len(self.points["train"]))))
            trained = self.spec.is_trained(name)
            model = self.untrained(name) if trained else self.model(name)
            with torch.no_grad():
                out = logits_of(model, images.pixels.to(device_of(model)))
            self._answer_hashes[name] = hash_tensors(out)
        return self._answer_hashes[name]

    def model_folder(self, name: str) -> Path:
        """Where a model's checkpoints are."""
        return self.folder / "models" / f"{name}-{fingerprint(self.model_identity(name))}"

    def model(self, name: str) -> nn.Module:
        """A model that was brought along, or trained; from the folder if it is there."""
        if name not in self._models:
            started = time.perf_counter()
            if self.spec.is_trained(name):
                self._models[name], reused = self._train(name)
            else:
                weights = self.spec.models[name].weights
                model = bring_model(self.spec.network_of(name), weights, self.points["train"])
                self._models[name], reused = model.to(self.device), True
            seconds = time.perf_counter() - started
            self.listener.made(f"model {name}", reused=reused, seconds=seconds)
        return self._models[name]

    def untrained(self, name: str) -> nn.Module:
        """The network of a model that is trained here, as its training starts."""
        points, network = self.points["train"], self.spec.network_of(name)
        assert network is not None
        return build_network(
            network,
            classes=points.classes,
            channels=points.images.shape[1],
            size=side_of(points),
            seed=self.spec.seed_of(name),
        )

    @timed(Stage.TRAINING)
    def _train(self, name: str) -> tuple[nn.Module, bool]:
        recipe, folder = self.recipe(name), self.model_folder(name)
        points, model, fabric = self.points["train"], self.untrained(name), self.fabric
        done = self._epochs_done(name, model)
        done = self.ranks.first(lambda: done)  # what the first process found counts for all
        if done < recipe.epochs:
            train(
                model,
                points.images,
                points.labels,
                recipe,
                folder=folder,
                fabric=fabric or one_process(recipe, self.device),
                progress=self.progress,
            )
        model.to(self.device).eval()
        if self.ranks.is_first and config_of(model) is not None:
            self._publish(name, model)
        return model, done == recipe.epochs

    def _publish(self, name: str, model: nn.Module) -> None:
        """Keep a trained model also as a folder for others, unless that is there and whole."""
        folder, test = self.model_folder(name), self.points["test"]
        try:
            check_pretrained(folder)
            return
        except InputError as error:
            if (folder / WEIGHTS).exists() or (folder / CONFIG).exists():
                self.listener.warn(f"{error} Writing it again.")
        save_pretrained(
            model,
            folder,
            data=self.spec.data.name,
            recipe=self.recipe(name),
            clean_accuracy=evaluate(model, test.images, test.labels),
            seed=self.spec.seed_of(name),
        )

    def _epochs_done(self, name: str, model: nn.Module) -> int:
        """Fill the model with its checkpoint, if there is one and it is the right one."""
        path = self.model_folder(name) / LAST
        if not path.exists():
            return 0
        expected = self.model_identity(name) | {"architecture": config_of(model)}
        try:
            tensors, header = read_checkpoint(path)
            for key in ("recipe", "data", "architecture"):
                if fingerprint(header.get(key)) != fingerprint(expected[key]):
                    raise InputError(f"{path} belongs to another training (its {key} differs).")
            done = int(header["epochs_done"])
            fill_weights(model, tensors, path)
            return done
        except (InputError, KeyError, TypeError) as error:
            self.listener.warn(f"{error} Training {name} again.")
            path.unlink(missing_ok=True)
            return 0

    def history(self, name: str) -> list[Epoch]:
        """The epochs of a trained model; none for one that was brought along."""
        self.model(name)
        if not self.spec.is_trained(name):
            return []
        _, header = read_tensors(self.model_folder(name) / LAST)
        return [Epoch(**epoch) for epoch in header["history"]]


def _versions() -> dict[str, str]:
    return {"mixup_inference": __version__, "torch": str(torch.__version__)}
