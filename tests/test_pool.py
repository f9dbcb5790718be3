from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mixup_inference import InputError, MixupInference, Pool, create_model
from mixup_inference.draws import Draws, make_key
from mixup_inference.pool import mix


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


def on_disk(x, path):
    """The same images as a read-only map of a file, and as a tensor that maps it."""
    np.save(path / "images.npy", x.numpy())
    x.numpy().tofile(path / "images.bin")
    raw = torch.from_file(str(path / "images.bin"), size=x.numel(), dtype=x.dtype)
    return np.load(path / "images.npy", mmap_mode="r"), raw.view(x.shape)


@pytest.mark.parametrize("options", [{}, {"sampling": "stratified", "control_variate": True}])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_pool_on_disk_answers_as_one_in_memory(tmp_path, dtype, options):
    x, model = images(dtype=dtype), create_model("small_cnn", 3, channels=1, width=4)
    inputs, index = torch.rand(5, 1, 2, 2), torch.arange(5)

    def answer(pool):
        return MixupInference(model, pool, draws=7, **options)(inputs, index=index)

    expected = answer(Pool(x, LABELS))
    for mapped in on_disk(x, tmp_path):
        assert torch.equal(answer(Pool(mapped, LABELS)), expected)


def test_a_read_only_array_is_taken_without_a_copy_and_without_a_warning(tmp_path):
    x = images(dtype=torch.uint8)
    mapped, _ = on_disk(x, tmp_path)
    labels = LABELS.numpy().copy()
    labels.setflags(write=False)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool = Pool(mapped, labels)
            Pool([(mapped[i], i) for i in range(3)])
    finally:
        torch.set_warn_always(False)
    assert pool.images.data_ptr() == mapped.ctypes.data
    assert torch.equal(copy.deepcopy(pool).images, x)


def resident():
    """Bytes of this process that are in memory, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_million_images_on_disk_are_not_read(tmp_path):
    shape = (1_000_000, 3, 32, 32)
    with (tmp_path / "images.bin").open("wb") as file:
        file.truncate(int(np.prod(shape)))  # sparse: takes no room on disk either
    labels, model = torch.arange(shape[0]) % 10, create_model("small_cnn", 10, width=4)
    before = resident()
    pool = Pool(np.memmap(tmp_path / "images.bin", dtype=np.uint8, mode="r", shape=shape), labels)
    assert len(pool) == 1_000_000
    MixupInference(model, pool, draws=5)(torch.rand(4, *shape[1:]))
    assert resident() - before < 300e6  # of 3 GB


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mixing_is_bit_for_bit_what_weights_and_counts_were_made_with(dtype):
    """In training and theory the plain expression, in the defence the one in place."""
    generator = torch.Generator().manual_seed(0)
    x, x_s = (torch.rand(9, n, 3, 8, 8, generator=generator).to(dtype) for n in (1, 7))
    lam = torch.rand(9, 7, 1, 1, 1, generator=generator).to(dtype)
    plain = lam * x + (1 - lam) * x_s
    kept = x_s.clone()
    assert torch.equal(mix(x, x_s, lam), plain)
    assert torch.equal(mix(x, x_s, 0.3), 0.3 * x + (1 - 0.3) * x_s)
    assert torch.equal(x_s, kept)
    expected = x_s.clone().mul_(1 - lam).addcmul_(lam, x)
    mixed = mix(x, x_s, lam, in_place=True)
    assert mixed is x_s
    assert torch.equal(mixed, expected)
    torch.testing.assert_close(mixed, plain)


def test_the_gradient_of_mixing_is_lam():
    for in_place in (False, True):
        x = torch.rand(2, 1, 1, 2, 2, requires_grad=True)
        lam = torch.rand(2, 3, 1, 1, 1)
        mixed = mix(x, torch.rand(2, 3, 1, 2, 2), lam, in_place=in_place)
        (gradient,) = torch.autograd.grad(mixed.sum(), x)
        torch.testing.assert_close(gradient, lam.sum(1, keepdim=True).expand_as(x))
