"""Every objective keeps the contract, those of a user's own too; identities of trainings stay."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch import nn

from mixup_inference import InputError, create_model, train
from mixup_inference.experiments.cost import training_passes
from mixup_inference.models.call import count_passes
from mixup_inference.training import LAST, OBJECTIVES, Batch, Examples, ObjectiveEntry, Recipe
from mixup_inference.training.objectives import erm
from mixup_inference.utils.io import fingerprint, read_tensors, write_tensors
from stopping_trainings import StopAfter, StopError

CLASSES, COUNT = 3, 12
SMALL = {"epochs": 2, "batch_size": 5, "lr": 0.1, "eps": 0.1, "step": 0.05, "steps": 2}
X = torch.rand(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % CLASSES
#: Those that train on the images as they are, beside others.
KEEP_CLEAN = {"erm", "at", "trades", "free-at", "label-smoothing", "smoothed"}
MODULE = """
from mixup_inference.training.objectives import erm

def same(model, batch, recipe, classes):
    return erm(model, batch, recipe, classes)
"""


def smoothed(model: nn.Module, batch: Batch, recipe: Recipe, classes: int) -> Examples:
    """Label smoothing: a tenth of each label is spread over all classes."""
    plain = erm(model, batch, recipe, classes)
    return Examples(plain.x, 0.9 * plain.targets + 0.1 / classes, plain.weights)


@pytest.fixture
def own():
    """An objective of a user's own, registered for a while."""
    OBJECTIVES.register("smoothed", title="label smoothing")(smoothed)
    yield OBJECTIVES["smoothed"]
    OBJECTIVES.remove("smoothed")


def network():
    return create_model("small_cnn", CLASSES, channels=1, width=4)


def weights(model):
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


@pytest.mark.parametrize("name", [*OBJECTIVES, "smoothed"])
@pytest.mark.usefixtures("own", "same_global_state")
def test_contract(name):
    entry, recipe, model = OBJECTIVES[name], Recipe(objective=name, **SMALL), network().eval()
    assert entry.name == name
    assert entry.title
    assert bool(entry.without_mixup) == entry.uses_mixup
    if entry.uses_mixup:
        plain = OBJECTIVES[entry.without_mixup]
        assert (plain.uses_mixup, plain.adversarial) == (False, entry.adversarial)
    assert Recipe.of_paper(name).objective == name
    batch = Batch(X, Y, torch.arange(COUNT) + 50, epoch=1)
    with count_passes(model) as passes:
        out = entry.function(model, batch, recipe, CLASSES)
    x = out.x.detach()
    inner = entry.inner_passes(recipe)
    assert (passes.forward, passes.backward) == (COUNT * inner[0], COUNT * inner[1])
    assert len(out.x) == len(out.targets) == len(out.weights) == COUNT * entry.rows
    assert out.x.shape[1:] == X.shape[1:]
    if name != "between-class":  # which raises the contrast
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert out.targets.shape[1] == CLASSES
    torch.testing.assert_close(out.targets.sum(1), torch.ones(len(out.x)))
    torch.testing.assert_close(out.weights.sum(), torch.tensor(1.0))
    keeps_clean = bool((out.x[:, None] == X).flatten(2).all(2).any(0).all())
    if name != "manifold-mixup":  # where the layer decides
        assert keeps_clean == (name in KEEP_CLEAN)
        assert not (entry.uses_mixup and keeps_clean)
    again = entry.function(model, batch, recipe, CLASSES)
    assert torch.equal(out.x, again.x)  # nothing is random but by the seed
    forward, backward = training_passes(recipe, COUNT)
    assert (forward, backward) == tuple(2 * COUNT * (part + entry.rows) for part in inner)


@pytest.mark.parametrize("name", [*OBJECTIVES, "smoothed"])
@pytest.mark.usefixtures("own", "same_global_state")
def test_every_objective_trains_and_resumes(name, tmp_path):
    recipe = Recipe(objective=name, **SMALL)
    straight, resumed = network(), network()
    history = train(straight, X, Y, recipe)
    assert [epoch.epoch for epoch in history] == [1, 2]
    with pytest.raises(StopError):
        train(network(), X, Y, recipe, folder=tmp_path, save_every=0, progress=StopAfter(2))
    train(resumed, X, Y, recipe, folder=tmp_path)
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.usefixtures("own")
def test_an_objective_of_ones_own_is_minimised():
    """With one class in the data, label smoothing has the optimum p = 0.9 + 0.1 / classes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    recipe = Recipe(objective="smoothed", epochs=400, batch_size=12, lr=0.2, milestones=())
    train(model, X, torch.zeros(COUNT, dtype=torch.int64), recipe)
    with torch.no_grad():
        likely = model(X).softmax(1)[:, 0]
    torch.testing.assert_close(likely, torch.full((COUNT,), 0.9 + 0.1 / CLASSES), atol=0.01, rtol=0)


def test_an_objective_by_its_place_runs_once_it_was_loaded(tmp_path, monkeypatch):
    (tmp_path / "their_objectives.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    name = "their_objectives:same"
    ours, theirs = network(), network()
    with pytest.raises(InputError, match="--allow-code"):
        train(theirs, X, Y, Recipe(objective=name, **SMALL))
    try:
        assert isinstance(OBJECTIVES.load(name), ObjectiveEntry)
        train(theirs, X, Y, Recipe(objective=name, **SMALL))
    finally:
        OBJECTIVES.remove(name)
        sys.modules.pop("their_objectives", None)
    train(ours, X, Y, Recipe(objective="erm", **SMALL))
    assert torch.equal(weights(ours), weights(theirs))


def test_recipes_hash_as_they_did_in_0_1_0():
    """Their hash is part of the identity of a training: its folder, whether it resumes."""
    assert fingerprint(Recipe().header()) == "e7ca14909b82f88e"
    assert fingerprint(Recipe.of_paper("iat").header()) == "515ee885f4036a68"
    for added in ({"ratio": "batch"}, {"beta": 1}, {"replays": 8}, {"smoothing": 0}, {"margin": 0}):
        assert fingerprint(Recipe(**added).header()) != fingerprint(Recipe().header())


def test_headers_are_read_again():
    for recipe in (Recipe(), Recipe(objective="at", lr=1, milestones=(), ratio="batch", lam=0.3)):
        assert Recipe.of_header(recipe.header()) == recipe
        assert Recipe.of_header({**recipe.header(), "ratio": recipe.ratio}) == recipe
    with pytest.raises(InputError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        Recipe.of_header({"epoch": 3})


def test_a_state_whose_header_names_every_default_resumes(tmp_path):
    recipe = Recipe(objective="mixup", **SMALL)
    straight, resumed = network(), network()
    train(straight, X, Y, recipe)
    with pytest.raises(StopError):
        train(network(), X, Y, recipe, folder=tmp_path, save_every=0, progress=StopAfter(2))
    tensors, header = read_tensors(tmp_path / LAST)
    header["recipe"] |= {"ratio": "sample", "weight_decay": 0}
    write_tensors(tmp_path / LAST, tensors, header)
    train(resumed, X, Y, recipe, folder=tmp_path)
    assert torch.equal(weights(straight), weights(resumed))
    with pytest.raises(InputError, match="ratio None instead of batch"):
        train(network(), X, Y, replace(recipe, ratio="batch"), folder=tmp_path)


def test_recipes_are_values():
    recipe = Recipe(epochs=np.int64(3), lr=1, milestones=[0.5])
    assert (recipe.epochs, recipe.lr, recipe.milestones) == (3, 1.0, (0.5,))
    assert replace(recipe, epochs=4).epochs == 4
    with pytest.raises(InputError, match="epochs must be greater than or equal to 1"):
        replace(recipe, epochs=0)
    with pytest.raises(FrozenInstanceError):
        recipe.epochs = 5
    with pytest.raises(InputError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        Recipe(epoch=3)
    with pytest.raises(InputError, match=r"epochs must be .*; saw 0\. lr must be .*; saw -1\."):
        Recipe(epochs=0, lr=-1)
