from __future__ import annotations

import pytest
import torch

from mixup_inference import InputError
from mixup_inference.datasets import (
    Dataset,
    LabelledImages,
    Shape,
    as_tensors,
    data_root,
    experiment_points,
    load_dataset,
    random_order,
    shape_of,
    split,
)


def test_digits_are_all_there():
    data = load_dataset("digits").train
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.classes == 10
    assert float(data.pixels.min()) == 0
    assert float(data.pixels.max()) == 1
    assert torch.bincount(data.labels).min() > 170


def test_splits_are_disjoint_complete_seeded_and_random():
    data = load_dataset("digits").train
    sizes = {"test": 500, "tuning": 200, "calibration": 100}
    parts = split(data, sizes, seed=0, rest="train")
    assert {name: len(part) for name, part in parts.items()} == sizes | {"train": 997}
    together = torch.cat([part.index for part in parts.values()])
    assert sorted(together.tolist()) == list(range(1797))
    for part in parts.values():
        assert torch.equal(part.images, data.images[part.index])
        assert torch.equal(part.labels, data.labels[part.index])
    again, other = (split(data, sizes, seed=s, rest="train")["test"] for s in (0, 1))
    assert torch.equal(again.index, parts["test"].index)
    assert not torch.equal(other.index, parts["test"].index)
    assert 0.45 < parts["test"].index.double().mean() / 1797 < 0.55


def test_random_order_is_a_permutation():
    assert sorted(random_order(1000, seed=3, name="x").tolist()) == list(range(1000))


def test_errors():
    with pytest.raises(InputError, match="ask for 1797 points"):
        split(load_dataset("digits").train, {"test": 1797}, seed=0, rest="train")
    with pytest.raises(InputError, match="did you mean 'digits'"):
        load_dataset("digit")


def images(count, channels=3, size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, size, size), generator=generator).byte()


def labelled(count, start=0, **shape):
    index = torch.arange(start, start + count)
    return LabelledImages(images(count, **shape), index % 3, index, ("a", "b", "c"))


def test_points_of_an_official_division_come_from_its_test_set():
    data = Dataset(labelled(60), labelled(12, start=60))
    parts = experiment_points(data, {"test": 5, "tuning": 3}, seed=0)
    assert {n: len(part) for n, part in parts.items()} == {"test": 5, "tuning": 3, "train": 60}
    assert not set(parts["test"].index.tolist()) & set(parts["tuning"].index.tolist())
    assert min(parts["test"].index.min(), parts["tuning"].index.min()) >= 60
    assert len(experiment_points(data, {"test": 12}, seed=0)["test"]) == 12  # all of it
    more = experiment_points(data, {"test": 9, "tuning": 3}, seed=0)
    assert set(parts["test"].index.tolist()) < set(more["test"].index.tolist())
    # Points that something was tuned on do not become test points when more are tested.
    assert more["tuning"].index.tolist() == parts["tuning"].index.tolist()
    with pytest.raises(InputError, match="ask for 13 points"):
        experiment_points(data, {"test": 13}, seed=0)


def test_fitting_to_another_size_and_number_of_channels():
    colour = labelled(5, size=6)
    assert torch.equal(colour.fitted().images, colour.images)
    assert torch.equal(colour.fitted(size=6).images, colour.images)
    grey = colour.fitted(channels=1)
    by_hand = (colour.images * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1).round()
    assert grey.images.dtype == torch.uint8
    assert torch.equal(grey.images[:, 0].float(), by_hand)
    again = grey.fitted(channels=3).images
    assert torch.equal(again[:, 0], again[:, 2])
    assert colour.fitted(size=(3, 9)).images.shape == (5, 3, 3, 9)
    assert Dataset(colour, colour).fitted(size=2).test.images.shape[-1] == 2
    # halving the side with antialiasing keeps the mean brightness
    assert abs(colour.fitted(size=3).pixels.mean() - colour.pixels.mean()) < 0.02
    for wrong in ((3, 3, 3), "8", 8.0):
        with pytest.raises(InputError, match="size"):
            colour.fitted(size=wrong)
    for wrong in (0, (3, 0)):
        with pytest.raises(InputError, match="at least 1"):
            colour.fitted(size=wrong)
    with pytest.raises(InputError, match="1 or 3 channels"):
        colour.fitted(channels=2)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_any_torch_dataset_becomes_two_tensors():
    from PIL import Image

    x, y = images(6), torch.arange(6) % 3
    pairs = Pairs([(image, int(label)) for image, label in zip(x, y, strict=True)])
    pil = Pairs([(Image.fromarray(i.permute(1, 2, 0).numpy()), int(label)) for i, label in pairs])
    arrays = Pairs([(image.numpy(), label) for image, label in pairs])
    loader = torch.utils.data.DataLoader(pairs, batch_size=4)
    by_sampler = torch.utils.data.DataLoader(pairs, batch_sampler=[[0, 1], [2, 3, 4, 5]])
    one_by_one = torch.utils.data.DataLoader(pairs, batch_size=None)
    for source in (pairs, pil, arrays, loader, by_sampler, one_by_one):
        got = as_tensors(source)
        assert torch.equal(got[0], x)
        assert torch.equal(got[1], y)
    palette = as_tensors([(pil[0][0].convert("P", palette=Image.Palette.ADAPTIVE), 0)])[0]
    assert (palette.float() - x[:1].float()).abs().mean() < 12  # colours, not palette numbers
    assert as_tensors([(pil[0][0].convert("RGBA"), 0)])[0].shape == (1, 3, 4, 4)
    grey = Image.fromarray(x[0, 0].numpy())
    assert as_tensors([(grey, 0)])[0].shape == (1, 1, 4, 4)
    with pytest.raises(InputError, match="one size"):
        as_tensors([(images(1)[0], 0), (images(1, size=5)[0], 1)])
    with pytest.raises(InputError, match="needs labels"):
        as_tensors(x)


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("MIXUP_INFERENCE_DATA", "somewhere")
    assert str(data_root()) == "somewhere"
    assert data_root(tmp_path) == tmp_path
    monkeypatch.delenv("MIXUP_INFERENCE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root().name == "mixup-inference"
    assert data_root().is_absolute()


def test_shapes_are_known_without_reading():
    assert shape_of("cifar100") == Shape(50_000, 10_000, 3, (32, 32), 100)
    assert str(shape_of("digits")) == "1,797 grey images of 8x8, 10 classes"
    assert shape_of("cifar10", size=64, channels=1).size == (64, 64)


def test_unknown_names():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load_dataset("cifr10")
    with pytest.raises(InputError, match="needs a path"):
        load_dataset("folder:")
