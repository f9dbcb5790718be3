"""The models of an experiment: trained here and kept, or loaded ready.

A trained model's identity holds a hash of the code that trains it. ``reuse_models`` takes one that
older code has trained by the same recipe on the same data, and remembers that it did.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mixup_inference import models as networks
from mixup_inference.datasets import LabelledImages
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.evaluation.evaluate import evaluate
from mixup_inference.experiments.cache import IDENTITY, MODELS, Identity
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import first
from mixup_inference.experiments.spec import NetworkSpec
from mixup_inference.models.call import device_of, logits_of, refuse_probabilities
from mixup_inference.training import LAST, Epoch, Recipe, in_precision_of, one_process, train
from mixup_inference.training.objectives import OBJECTIVES
from mixup_inference.utils import io
from mixup_inference.utils.profiling import Stage, timed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mixup_inference.experiments.experiment import Experiment

#: So many training images tell whether a model that was brought along works at all.
TRIAL = 200


def build_network(
    network: NetworkSpec, *, classes: int, channels: int, size: int | None = None, seed: int = 0
) -> nn.Module:
    """A network of the registry with fresh weights, or the user's own as their function made it."""
    settings = network.settings
    classes = network.classes or classes
    if not network.is_foreign:
        settings = {"channels": channels, "size": size, "seed": seed, **settings}
        return networks.create_model(network.name, classes, **settings)
    scale = {name: settings.pop(name, default) for name, default in (("mean", 0.0), ("std", 1.0))}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner = networks.import_model(network.name, classes, **settings)
    return networks.Normalized(inner, channels=channels, **scale)


@timed(Stage.LOADING)
def load_model(
    network: NetworkSpec | None, weights: str | None, points: LabelledImages
) -> nn.Module:
    """A model that needs no training: weights in a network, or a checkpoint that has both.

    It is tried on a few images, with a warning when it does no better than chance.
    """
    if weights is not None and (network is None or _brings(weights, network)):
        model = networks.from_pretrained(weights)
    else:
        assert network is not None
        model = build_network(network, classes=points.classes, channels=points.images.shape[1])
        if weights is not None:
            inner = model.model if isinstance(model, networks.Normalized) else model
            networks.load_weights(inner, weights)
    model.float().eval()
    _try(model, points)
    return model


def _brings(weights: str, network: NetworkSpec) -> bool:
    """Whether weights are a checkpoint of ours, which brings its network along.

    Then what is said of the network must not contradict what the checkpoint says of itself.
    """
    try:
        _, header = networks.read_checkpoint(networks.weights_file(weights))
    except InputError:
        return False
    config = header.get("architecture")
    if not isinstance(config, dict):
        return False
    for name, value in {"name": network.name, **network.settings}.items():
        if name in config and io.fingerprint(config[name]) != io.fingerprint(value):
            raise InputError(
                f"{weights} says that its {name} is {config[name]}, not {value}. Leave it out: a "
                "checkpoint of ours brings its network and normalisation along."
            )
    return True


def _try(model: nn.Module, points: LabelledImages) -> None:
    sample = points.take(torch.arange(len(points))[:: max(1, len(points) // TRIAL)][:TRIAL])
    shape = tuple(points.images.shape[1:])
    try:
        with torch.no_grad():
            out = logits_of(model, first(sample, 2).pixels)
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


class ModelProvider:
    """Models by the names that the spec has for them.

    Args:
        experiment: whose models they are.
        fabric: connects several processes; None for one.
        reuse_models: take a finished model that older code has trained by the same recipe.
    """

    def __init__(
        self, experiment: Experiment, fabric: Fabric | None, *, reuse_models: bool
    ) -> None:
        self.spec, self.data = experiment.spec, experiment.data
        self.device, self.ranks = experiment.device, experiment.ranks
        self.callback, self.progress = experiment.callback, experiment.progress
        self.folder = experiment.folder / MODELS
        self.fabric = fabric
        self.reuse_models = reuse_models
        #: Models of older code that are used on purpose, with their folders.
        self.reused: dict[str, str] = {}
        self._models: dict[str, nn.Module] = {}
        self._identities: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> nn.Module:
        """A model, loaded or, if it has not been trained yet, trained."""
        if name not in self._models:
            started = time.perf_counter()
            if self.spec.is_trained(name):
                self._models[name], reused = self._train(name)
            else:
                weights = self.spec.models[name].weights
                model = load_model(self.spec.network_of(name), weights, self.data.points["train"])
                self._models[name], reused = model.to(self.device), True
            seconds = time.perf_counter() - started
            self.callback.made(f"model {name}", reused=reused, seconds=seconds)
        return self._models[name]

    def identity(self, name: str) -> Identity:
        """Everything that determines a model, the code that trains it included."""
        if name not in self._identities:
            identity = self._identity(name)
            if self.reuse_models and self.spec.is_trained(name):
                older = self.ranks.first(lambda: self._older(name, identity))
                if older is not None:
                    self.reused[name], identity = older
            self._identities[name] = identity
        return self._identities[name]

    def _identity(self, name: str) -> Identity:
        network = self.spec.network_of(name)
        identity = {
            "torch": str(torch.__version__),
            "device": self.device,
            "network": network and network.model_dump(mode="json", exclude_none=True),
            "data": self.data.hash_of("train"),  # trained on it or not, its defences draw from it
        }
        if not self.spec.is_trained(name):
            return identity | {"outputs": self._hash_outputs(self[name])}
        assert network is not None
        recipe = self.recipe(name)
        objective = OBJECTIVES[recipe.objective]
        code: list[Any] = [train, objective.function]
        if network.is_foreign:  # its code may change under its name
            identity["outputs"] = self._hash_outputs(self.untrained(name))
        else:
            code.append(networks.NETWORKS[network.name].factory)
        # An inner attack attacks the bare model.
        without = ("defenses", "detection") if objective.adversarial else ("attacks",)
        identity["code"] = code_hash(*code, without=without)
        return identity | {"recipe": recipe.header()}

    def _hash_outputs(self, model: nn.Module) -> str:
        """A hash of what a user's model outputs for a few images, before any training here.

        So a model is recognised by what it does: by its weights and by its code.
        """
        images = first(self.data.points["train"], 8)
        with torch.no_grad():
            return io.hash_tensors(logits_of(model, images.pixels.to(device_of(model))))

    def _older(self, name: str, wanted: Identity) -> tuple[str, Identity] | None:
        """The folder and identity of a finished model that other code trained by this recipe."""
        if (self.folder / f"{name}-{io.fingerprint(wanted)}" / LAST).exists():
            return None
        model = self.untrained(name)
        paths = sorted(self.folder.glob(f"{name}-*/{LAST}"), key=lambda path: path.stat().st_mtime)
        for path in reversed(paths):
            try:
                _, header = networks.read_checkpoint(path)  # all of it: it must not be damaged
                done = self._epochs_done(name, model, path, header)
            except (InputError, KeyError, TypeError):
                continue
            if done == self.recipe(name).epochs:
                folder = path.parent
                try:
                    return folder.name, io.read_checked_json(folder / IDENTITY)["identity"]
                except (InputError, KeyError):  # a model of a version that kept no identity
                    return folder.name, wanted | {"code": folder.name}
        return None

    def _epochs_done(self, name: str, model: nn.Module, path: Path, header: dict[str, Any]) -> int:
        """The epochs that a checkpoint has done; InputError if it is of another training."""
        wanted = {
            "recipe": (Recipe.of_header(header["recipe"]).header(), self.recipe(name).header()),
            "data": (header["data"], self.data.hash_of("train")),
            "architecture": (header["architecture"], networks.config_of(model)),
        }
        for key, (found, expected) in wanted.items():
            if io.fingerprint(found) != io.fingerprint(expected):
                raise InputError(f"{path} belongs to another training (its {key} differs).")
        return int(header["epochs_done"])

    def recipe(self, name: str) -> Recipe:
        """How a model is trained here."""
        return in_precision_of(self.fabric, self.spec.recipe(name))

    def training(self, name: str) -> dict[str, Any] | None:
        """How a model was trained, here or, if its checkpoint says so, elsewhere."""
        network = self.spec.network_of(name)
        if self.spec.is_trained(name):
            assert network is not None
            described = network.model_dump(exclude_none=True, exclude={"classes"})
            return {"network": described, **self.recipe(name).header()}
        card: Any = getattr(self[name], "card", None)
        try:
            recipe, described = Recipe.of_header(card["recipe"]), dict(card["architecture"])
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            return None
        of_data = ("num_classes", "channels", "size")
        described = {key: described[key] for key in described if key not in of_data}
        return {"network": described, **recipe.header()}

    def folder_of(self, name: str) -> Path:
        """Where a model's checkpoints are."""
        if name in self.reused:
            return self.folder / self.reused[name]
        return self.folder / f"{name}-{io.fingerprint(self.identity(name))}"

    def untrained(self, name: str) -> nn.Module:
        """The network of a model that is trained here, as its training starts."""
        points, network = self.data.points["train"], self.spec.network_of(name)
        assert network is not None
        channels, height, width = points.images.shape[1:]
        return build_network(
            network,
            classes=points.classes,
            channels=channels,
            size=height if height == width else None,
            seed=self.spec.seed_of(name),
        )

    @timed(Stage.TRAINING)
    def _train(self, name: str) -> tuple[nn.Module, bool]:
        """Train a model, or load what is done of it; whether nothing was left to do."""
        identity, recipe = self.identity(name), self.recipe(name)
        folder, points = self.folder_of(name), self.data.points["train"]
        model = self.untrained(name)
        done = self._load_checkpoint(name, model)
        done = self.ranks.first(lambda: done)  # what the first process found counts for all
        if done < recipe.epochs:
            if self.ranks.is_first:
                io.write_json(folder / IDENTITY, io.add_checksum({"identity": identity}))
            train(
                model,
                points.images,
                points.labels,
                recipe,
                folder=folder,
                fabric=self.fabric or one_process(recipe, self.device),
                progress=self.progress,
            )
        model.to(self.device).eval()
        if self.ranks.is_first and networks.config_of(model) is not None:
            self._publish(name, model)
        return model, done == recipe.epochs

    def _publish(self, name: str, model: nn.Module) -> None:
        """Save a trained model as a folder for ``from_pretrained`` too, unless it is there."""
        folder, test = self.folder_of(name), self.data.points["test"]
        try:
            networks.check_pretrained(folder)
            return
        except InputError as error:
            if any((folder / name).exists() for name in (networks.WEIGHTS, networks.CONFIG)):
                self.callback.warn(f"{error} Writing it again.")
        networks.save_pretrained(
            model,
            folder,
            data=self.spec.data.name,
            recipe=self.recipe(name),
            clean_accuracy=evaluate(model, test.images, test.labels),
            seed=self.spec.seed_of(name),
        )

    def _load_checkpoint(self, name: str, model: nn.Module) -> int:
        """Fill the model from its checkpoint, if there is a right one; the epochs it has done."""
        path = self.folder_of(name) / LAST
        if not path.exists():
            return 0
        try:
            tensors, header = networks.read_checkpoint(path)
            done = self._epochs_done(name, model, path, header)
            networks.fill_weights(model, tensors, path)
            return done
        except (InputError, KeyError, TypeError) as error:
            self.callback.warn(f"{error} Training {name} again.")
            path.unlink(missing_ok=True)
            return 0

    def history(self, name: str) -> list[Epoch]:
        """The epochs of a model that was trained here; none for others."""
        if not self.spec.is_trained(name):
            return []
        header = io.read_header(self.folder_of(name) / LAST)
        return [Epoch(**epoch) for epoch in header["history"]]
