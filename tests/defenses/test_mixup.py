from __future__ import annotations

import copy
import pickle
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference
from mixup_inference import Beta, InputError, MixupInference, Pool, Uniform
from mixup_inference.draws import Draws, make_key

L = 4


def smooth_model(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 4, L)).to(dtype)


MODEL = smooth_model()
GENERATOR = torch.Generator().manual_seed(1)
IMAGES = torch.rand(20, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.arange(20) % L
POOL = Pool(IMAGES, LABELS)
X = torch.rand(7, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
INDEX = torch.tensor([3, 100, 7, 0, 55, 2**40, 8])


def make(**settings):
    return MixupInference(MODEL, POOL, **({"draws": 5} | settings))


@pytest.mark.parametrize("rule", ["other", "predicted"])
@pytest.mark.parametrize("seed", [0, 3])
def test_equals_the_double_loop_draw_for_draw(rule, seed):
    mi = make(labels=rule, lam=0.6, seed=seed)
    slow = reference.mixup_inference(
        MODEL, IMAGES, LABELS, X, INDEX,
        rule=rule, lam=0.6, draws=5, key=make_key(seed, "index", 0),
    )  # fmt: skip
    torch.testing.assert_close(mi.predict_proba(X, index=INDEX), slow)
    torch.testing.assert_close(mi(X, index=INDEX), slow.log())


@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 7, 11, 1000])
def test_gradient_equals_that_of_the_explicit_loop(chunk):
    mi = make(lam=0.6, chunk=chunk)
    y = torch.arange(7) % L

    def gradient(log_probs):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(nn.functional.nll_loss(log_probs(x), y), x)[0]

    fast = gradient(lambda x: mi(x, index=INDEX))
    slow = gradient(
        lambda x: reference.mixup_inference(
            MODEL, IMAGES, LABELS, x, INDEX,
            rule="other", lam=0.6, draws=5, key=make_key(0, "index", 0),
        ).log()
    )  # fmt: skip
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("lam", [0.5, Uniform(0.3, 0.6)])
def test_gradient_equals_finite_differences(lam):
    mi = make(lam=lam, chunk=3)
    x = (0.1 + 0.8 * X[:2]).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: mi(z, index=INDEX[:2]), (x,))


@given(
    rows=st.lists(st.integers(0, 6), min_size=1, max_size=10),
    chunk=st.none() | st.integers(1, 40),
    split=st.integers(1, 7),
)
def test_draws_do_not_depend_on_batch_chunk_order_or_duplicates(rows, chunk, split):
    whole = make()(X, index=INDEX)
    mi = make(chunk=chunk)
    parts = [mi(X[part], index=INDEX[part]) for part in torch.tensor(rows).split(split)]
    torch.testing.assert_close(torch.cat(parts), whole[rows])


@given(seed=st.integers(0, 2**31), index=st.integers(0, 2**62), draws=st.integers(1, 60))
def test_other_never_draws_the_prediction_and_predicted_always_does(seed, index, draws):
    block = Draws(make_key(seed), torch.tensor([index]), torch.arange(draws))
    y_hat = torch.tensor([index % L])
    for rule, same in (("other", False), ("predicted", True)):
        _, numbers = make(labels=rule).partners(y_hat, block)
        assert bool(((LABELS[numbers] == y_hat) == same).all())


def test_other_draws_each_other_label_equally_often():
    block = Draws(make_key(5), torch.arange(L), torch.arange(3000))
    _, numbers = make().partners(torch.arange(L), block)
    for y_hat in range(L):
        counts = torch.bincount(LABELS[numbers[y_hat]], minlength=L)
        others = counts[torch.arange(L) != y_hat]
        assert counts[y_hat] == 0
        assert (others - 1000).abs().max() < 130  # 5 standard deviations


def test_probability_vector_and_callable_rules():
    block = Draws(make_key(5), torch.arange(10), torch.arange(2000))
    y_hat = torch.zeros(10, dtype=torch.long)
    _, numbers = make(labels=[0.0, 0.25, 0.75, 0.0]).partners(y_hat, block)
    share = torch.bincount(LABELS[numbers].flatten(), minlength=L) / numbers.numel()
    torch.testing.assert_close(share, torch.tensor([0, 0.25, 0.75, 0]), atol=0.02, rtol=0)
    _, numbers = make(labels=lambda y, u: (y + 1 + (u > 0.5)) % L).partners(y_hat, block)
    assert set(LABELS[numbers].unique().tolist()) == {1, 2}


def test_ratio_is_drawn_anew_for_each_draw():
    block = Draws(make_key(5), torch.arange(10), torch.arange(200))
    lam, _ = make(lam=Beta(2.0, 2.0)).partners(torch.zeros(10, dtype=torch.long), block)
    assert lam.shape == (10, 200)
    assert lam.unique().numel() == lam.numel()
    assert abs(float(lam.mean()) - 0.5) < 0.03


def test_lam_one_is_the_model_itself_and_lam_zero_ignores_x():
    torch.testing.assert_close(make(lam=1.0)(X), torch.log_softmax(MODEL(X), 1))
    flat = make(lam=0, labels=[1.0, 0, 0, 0])
    same = torch.full((7,), 4)
    out = flat(X, index=same)
    torch.testing.assert_close(out, out[:1].expand_as(out))


def test_output_is_a_log_distribution_and_proba_its_exponential():
    mi = make()
    torch.testing.assert_close(mi(X, index=INDEX).exp().sum(1), torch.ones(7).double())
    torch.testing.assert_close(mi.predict_proba(X, index=INDEX).log(), mi(X, index=INDEX))


def test_keeps_gradients_where_probabilities_underflow():
    class Steep(nn.Module):
        def forward(self, x):
            return torch.stack((x.sum((1, 2, 3)) * 1e4, x.sum((1, 2, 3)) * 0), 1)

    x = torch.rand(3, 1, 2, 2, requires_grad=True)
    mi = MixupInference(Steep(), Pool(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])))
    (gradient,) = torch.autograd.grad(mi(x)[:, 1].sum(), x)  # log of about e^-5000
    assert bool((gradient < -1).all())


def test_fresh_frozen_and_indexed_calls():
    mi = make(draws=3)
    assert not torch.equal(mi(X), mi(X))
    again = make(draws=3)
    first = again(X)
    again.reseed(0)
    assert torch.equal(again(X), first)
    again.reseed(1)
    assert not torch.equal(again(X), first)
    frozen = make(draws=3, fresh=False)
    assert torch.equal(frozen(X), frozen(X))
    torch.testing.assert_close(frozen(X[[2, 2, 5]]), frozen(X)[[2, 2, 5]])  # the same for every row
    assert torch.equal(mi(X, index=INDEX), mi(X, index=INDEX))
    assert not torch.equal(mi(X, index=INDEX), mi(X, index=INDEX, stream="another"))
    assert not torch.equal(mi(X, index=INDEX), make(draws=3, seed=1)(X, index=INDEX))


@pytest.mark.usefixtures("same_global_state")
def test_leaves_the_global_random_state_alone():
    x = X.clone().requires_grad_()
    make(chunk=2, lam=Beta(0.5, 0.5))(x).sum().backward()


def test_builds_no_graph_unless_asked():
    mi = make()
    assert not mi(X).requires_grad
    x = X.clone().requires_grad_()
    assert mi(x).requires_grad
    with torch.no_grad():
        assert not mi(x).requires_grad


@pytest.mark.parametrize("chunk", [1, 4, 9, 64])
def test_chunk_bounds_what_passes_through_the_model_at_once(chunk):
    sizes = []
    model = copy.deepcopy(MODEL)
    model.register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape[0]))
    mi = MixupInference(model, POOL, draws=6, chunk=chunk)
    x = X.clone().requires_grad_()
    mi(x).sum().backward()
    assert max(sizes) <= chunk
    recomputed = 0 if chunk >= 42 else 42
    assert sum(sizes) == 7 + 42 + recomputed


def test_chunk_bounds_memory_with_gradients_too():
    def saved(chunk, draws):
        total = [0]

        def pack(tensor):
            total[0] += tensor.numel()
            return tensor

        mi = make(draws=draws, chunk=chunk)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            mi(X.clone().requires_grad_(), index=INDEX)
        return total[0]

    assert saved(None, 100) > 10 * saved(14, 100)


def test_model_runs_in_eval_mode_whatever_the_training_flag_says():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten(), nn.Linear(12, L)
    ).double()
    mi = MixupInference(model, POOL, draws=3, chunk=4)
    expected = mi.eval()(X, index=INDEX)
    statistics = model[1].running_mean.clone()
    mi.train()
    x = X.clone().requires_grad_()
    out = mi(x, index=INDEX)
    torch.testing.assert_close(out.detach(), expected)
    out.sum().backward()  # recomputes the chunks
    assert torch.equal(model[1].running_mean, statistics)
    assert model.training
    assert model[2].training


@pytest.mark.parametrize("labels", ["other", "predicted", [0.1, 0.2, 0.3, 0.4]])
def test_can_be_pickled_and_copied(labels):
    mi = make(labels=labels)
    for twin in (pickle.loads(pickle.dumps(mi)), copy.deepcopy(mi)):  # noqa: S301
        assert torch.equal(twin(X, index=INDEX), mi(X, index=INDEX))


def test_memory_does_not_grow_with_samples_times_draws_times_classes():
    """Only (samples, classes) numbers are kept of a chunk, not one row per draw."""
    kept = []

    class Many(nn.Module):
        def forward(self, x):
            out = x.flatten(1)[:, :1] * torch.arange(500)
            kept.append(weakref.ref(out))
            return out

    images = torch.rand(500, 1, 2, 2)
    mi = MixupInference(Many(), Pool(images, torch.arange(500)), draws=8, chunk=8)
    alive = []
    original = mi._classify

    def watch(x):
        alive.append(sum(ref() is not None for ref in kept))
        return original(x)

    mi._classify = watch
    mi(images[:40])
    assert max(alive) <= 2


def test_numpy_numbers_are_numbers():
    mi = make(lam=np.float32(0.5), draws=np.int64(3), seed=np.int64(1))
    assert torch.equal(mi(X, index=INDEX), make(lam=0.5, draws=3, seed=1)(X, index=INDEX))


def test_mixed_precisions_and_devices_are_named():
    with pytest.raises(InputError, match=r"weights are torch.float64, the images torch.float32"):
        make()(X.float())
    with pytest.raises(InputError, match="move the defence"):
        make().base_log_probs(X.to("meta"))


def test_costs_one_pass_per_draw_plus_one():
    count = []
    model = copy.deepcopy(MODEL)
    model.register_forward_pre_hook(lambda _, args: count.append(args[0].shape[0]))
    MixupInference(model, POOL, draws=30)(X)
    assert sum(count) == 7 * 31


def test_follows_to_device_and_is_not_saved():
    mi = make()
    assert set(mi.state_dict()) == {f"model.{name}" for name in MODEL.state_dict()}
    assert copy.deepcopy(mi).to("meta").pool.images.device.type == "meta"


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(MODEL(x))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Returns(lambda z: z.softmax(1)), "probabilities"),
        (Returns(lambda z: (z, z)), "tuple"),
        (Returns(lambda z: {"logits": z}), "dict"),
        (Returns(lambda z: z[:, 0]), r"returned \(7,\)"),
        (Returns(lambda z: z[..., None]), r"returned \(7, 4, 1\)"),
        (Returns(lambda z: z[:, :3]), "predicts 3 classes, the pool holds 4"),
    ],
)
def test_says_when_the_model_returns_something_else(model, words):
    with pytest.raises(InputError, match=words):
        MixupInference(model, POOL)(X)


def test_an_output_that_carries_its_logits_is_fine():
    wrapped = MixupInference(Returns(lambda z: SimpleNamespace(logits=z, loss=None)), POOL, draws=5)
    assert torch.equal(wrapped(X, index=INDEX), make()(X, index=INDEX))


def test_a_model_that_returns_log_probabilities_is_fine():
    logits, logs = make(), MixupInference(Returns(lambda z: z.log_softmax(1)), POOL, draws=5)
    torch.testing.assert_close(logits(X, index=INDEX), logs(X, index=INDEX))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lam": 1.5}, r"lam must be in \[0, 1\]; saw 1.5"),
        ({"lam": -0.1}, "lam must be"),
        ({"lam": float("nan")}, "lam must be"),
        ({"lam": "half"}, "lam must be a number"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"draws": 2.5}, "draws must be a whole number"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"labels": "othr"}, "did you mean 'other'"),
        ({"labels": [0.5, 0.5]}, "must be 4 non-negative numbers"),
        ({"labels": [0.5, 0.6, 0, 0]}, "sum to 1"),
        ({"labels": [float("nan"), 0.5, 0.5, 0]}, "non-negative"),
        ({"labels": None}, "labels must be"),
        ({"seed": 2**63}, "below"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        make(**settings)


def test_unknown_options_raise():
    with pytest.raises(TypeError, match="did you mean 'draws'"):
        make(drawz=3)


def test_other_needs_two_classes():
    with pytest.raises(InputError, match="at least two classes"):
        MixupInference(MODEL, Pool(IMAGES, LABELS * 0))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X * 255, r"saw \[.*Divide by 255"),
        (X * 4 - 2, "normalisation"),
        (X * float("nan"), "NaN"),
        (X[:0], "empty batch"),
        (X[0], "4 dimensions"),
        ((X * 255).byte(), "must be float"),
        (X[:, :1], "the pool of shape"),
        (X.numpy(), "torch tensor"),
    ],
)
def test_bad_inputs(x, words):
    with pytest.raises(InputError, match=words):
        make()(x)


@pytest.mark.parametrize("index", [torch.arange(6), torch.rand(7), torch.zeros(7, 1).long()])
def test_bad_index(index):
    with pytest.raises(InputError, match="one integer per image"):
        make()(X, index=index)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda y, u: y + L, "outside 0..3"),
        (lambda y, u: u, "must return integers"),
        (lambda y, u: y[:, :1], "must return integers of shape"),
        (lambda y, u: 1, "must return integers"),
    ],
)
def test_bad_label_functions(rule, words):
    with pytest.raises(InputError, match=words):
        make(labels=rule)(X)


@pytest.mark.parametrize("gradient", [False, True])
def test_large_images_and_a_thousand_classes_stay_within_memory(gradient):
    """At 224x224 no more than 20 images pass through the model at once, whatever the batch."""
    seen = []

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1000)

        def forward(self, x):
            seen.append(len(x))
            return self.head(x.mean((2, 3)))

    image = torch.randint(0, 256, (1, 3, 224, 224)).byte()
    pool = Pool(image.expand(1000, -1, -1, -1), torch.arange(1000))  # one image in memory
    x = torch.rand(25, 3, 224, 224, requires_grad=gradient)
    out = MixupInference(Large(), pool, lam=0.5, draws=3)(x)
    assert out.shape == (25, 1000)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(25))
    assert max(seen) <= 20
    assert sum(seen) == 25 * (1 + 3)
    if gradient:
        out[:, 0].sum().backward()
        assert x.grad.abs().sum() > 0
