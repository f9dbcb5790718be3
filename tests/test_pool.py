from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mixup_inference import InputError, Pool
from mixup_inference.draws import Draws, make_key


def images(count=12, dtype=torch.float32):
    x = torch.rand(count, 1, 2, 2)
    return (x * 255).to(torch.uint8) if dtype == torch.uint8 else x.to(dtype)


LABELS = torch.tensor([0, 1, 2, 2, 1, 0, 0, 0, 1, 2, 2, 2])


def test_draws_only_the_wanted_class_and_every_member_of_it():
    pool = Pool(images(), LABELS)
    draws = Draws(make_key(0), torch.arange(30), torch.arange(40))
    wanted = (torch.arange(30) % 3)[:, None].expand(-1, 40)
    numbers = pool.draw(wanted, draws.bits(0))
    assert torch.equal(LABELS[numbers], wanted)
    assert sorted(numbers.unique().tolist()) == list(range(12))
    counts = torch.bincount(numbers.flatten(), minlength=12)[LABELS == 0]
    assert counts.min() > 50  # 400 draws from 4 members


def test_uint8_stays_uint8_and_comes_out_in_the_unit_interval():
    x = images(dtype=torch.uint8)
    pool = Pool(x, LABELS)
    assert pool.images.dtype == torch.uint8
    assert pool.images.data_ptr() == x.data_ptr()  # not even copied
    out = pool.pixels(torch.tensor([[3, 5]]), torch.float64)
    assert torch.equal(out, x[[3, 5]].double()[None] / 255)


def test_is_not_in_the_state_dict_but_follows_the_module():
    module = torch.nn.Sequential(Pool(images(), LABELS))
    assert module.state_dict() == {}
    assert module.to("meta")[0].images.device.type == "meta"


def test_takes_a_dataset_or_a_loader():
    x = images()
    dataset = TensorDataset(x, LABELS)
    for source in (dataset, DataLoader(dataset, batch_size=5)):
        pool = Pool(source)
        assert torch.equal(pool.images, x)
        assert torch.equal(pool.labels, LABELS)
    pairs = [(image.numpy(), int(label)) for image, label in dataset]
    assert torch.equal(Pool(pairs).labels, LABELS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pool(images(), LABELS * 2), "no image of class 1, 3"),
        (lambda: Pool(images(), LABELS, classes=4), "no image of class 3"),
        (lambda: Pool(images(), LABELS, classes=2), "contains label 2"),
        (lambda: Pool(images(), LABELS - 1), "contains label -1"),
        (lambda: Pool(images() * 255, LABELS), "Divide by 255"),
        (lambda: Pool(images() * 4 - 2, LABELS), "normalisation"),
        (lambda: Pool(images() * float("nan"), LABELS), "NaN"),
        (lambda: Pool(images().int(), LABELS), "uint8 or float"),
        (lambda: Pool(images()[0], LABELS), "shape"),
        (lambda: Pool(images(), LABELS[:5]), "5 labels for 12 images"),
        (lambda: Pool(images(), LABELS.float()), "integer labels"),
        (lambda: Pool(images()), "needs labels"),
        (lambda: Pool(5), "saw int"),
        (lambda: Pool([]), "empty"),
        (lambda: Pool(images().numpy()), "needs labels"),
        (lambda: Pool([(images()[0], 1, 2)]), "item 0 .* not a pair"),
        (lambda: Pool([("a", 1)]), "item 0 .* not a pair"),
        (lambda: Pool([(torch.rand(1, 2, 2), 0), (torch.rand(1, 3, 3), 1)]), "one size"),
        (lambda: Pool("abc", LABELS), "must be a tensor"),
        (lambda: Pool(images(), LABELS, classes="3"), "whole number"),
    ],
)
def test_errors_say_what_was_wrong(make, words):
    with pytest.raises(InputError, match=words):
        make()
