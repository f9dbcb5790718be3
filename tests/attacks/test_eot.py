"""Expectation over draws: closed forms, exact expectations, counts, and judges that are apart."""

from __future__ import annotations

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mixup_inference import (
    CombinedInference,
    GaussianNoise,
    InputError,
    MixupDetector,
    MixupInference,
    Pool,
    pgd,
)
from mixup_inference.attacks import (
    QueryModel,
    apgd_eot,
    base_of,
    eot_pgd,
    freeze,
    frozen,
    judge,
    official_adaptive,
    paper_adaptive,
    peer_attack,
    square_eot,
    transfer,
)
from mixup_inference.attacks.losses import LOSSES, dlr
from mixup_inference.attacks.query import Averaged
from mixup_inference.attacks.threat_model import step_sizes
from mixup_inference.defenses import mean_prediction

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).eval()
with torch.no_grad():
    MODEL[0].bias.copy_(-MODEL[0].weight.sum((1, 2, 3)) / 2)  # grey is zero: answers that vary
    MODEL[3].weight *= 8
X = torch.rand(9, 1, 6, 6)
Y = torch.arange(9) % 3
POOL = Pool(torch.rand(6, 1, 6, 6), torch.arange(6) % 3)
SMALL = {"eps": 0.2, "steps": 3, "repeats": 2}


def mixup(**options) -> MixupInference:
    return MixupInference(MODEL, POOL, lam=0.6, **({"draws": 4} | options))


class Noisy(nn.Module):
    """Not ours: noise from torch's generator, for each row or one for the whole call."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x[:1] if self.shared else x)
        return MODEL(x + 0.3 * noise)


# What an expectation is


def exact_expectation(x: Tensor) -> Tensor:
    """F_MI of MI-OL by enumeration of the pool; y_hat is a constant."""
    y_hat = MODEL(x).argmax(1)
    rows = []
    for image, label in zip(x, y_hat.tolist(), strict=True):
        others = [i for i, y in enumerate(POOL.labels.tolist()) if y != label]
        mixed = torch.stack([0.6 * image + 0.4 * POOL.images[i] for i in others])
        rows.append(MODEL(mixed).softmax(1).mean(0))
    return torch.stack(rows)


def gradient(function, x):
    leaf = x.clone().requires_grad_()
    (out,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return out


def test_the_gradient_is_that_of_the_exact_expectation_and_converges_with_the_root_of_draws():
    index = torch.arange(len(X))
    exact = gradient(lambda x: -exact_expectation(x).log().gather(1, Y[:, None]), X)
    victim = QueryModel(mixup(), X)

    def error(draws: int, repeat: int) -> float:
        def loss(x: Tensor) -> Tensor:
            return LOSSES["ce"](victim.log_probs(x, index, draws, "test", repeat), Y, None)

        return float((gradient(loss, X) - exact).norm() / exact.norm())

    few, many = (
        math.sqrt(sum(error(draws, repeat) ** 2 for repeat in range(8)) / 8) for draws in (64, 1024)
    )
    assert many < 0.05
    assert 3 < few / many < 5.3  # 1/sqrt(K): sixteen times the draws, a quarter of the error


def test_a_draw_of_a_defence_is_one_part_of_its_answer():
    defense, index = mixup(draws=5), torch.arange(9)
    each = defense.draw(X, 5, index=index, stream="a")
    torch.testing.assert_close(mean_prediction(each), defense(X, index=index, stream="a"))
    torch.testing.assert_close(  # a prefix of the draws is a prefix
        defense.draw(X, 2, index=index, stream="a"), each[:, :2]
    )


def test_combined_is_one_answer_of_so_many_draws():
    defense = CombinedInference(MODEL, POOL, threshold=0.0, draws=5)
    index = torch.arange(9)
    out = defense.draw(X, 5, index=index, stream="a")
    assert out.shape == (9, 1, 3)
    torch.testing.assert_close(out[:, 0], defense(X, index=index, stream="a"))


# Without randomness


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("loss", ["ce", "mean-ce"])
def test_on_a_model_without_randomness_it_is_pgd(norm, targeted, loss):
    options = {"eps": 0.2, "steps": 4, "norm": norm, "targeted": targeted, "seed": 3}
    ours = eot_pgd(MODEL, X, Y, step=0.07, draws=7, loss=loss, **options)
    torch.testing.assert_close(ours.examples, pgd(MODEL, X, Y, step=0.07, **options))
    assert ours.fooled.shape == (9, 1)
    assert (ours.forward, ours.backward) == (9 * 5, 9 * 4)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_losses_of_one_draw_are_the_textbook_ones(loss):
    logits = torch.tensor([[2.0, 0.5, -1.0, 0.0], [0.0, 3.0, 1.0, 2.0]], dtype=torch.float64)
    y, target = torch.tensor([0, 2]), torch.tensor([1, 3])
    log_p = logits.log_softmax(1)[:, None]
    p = logits.softmax(1)
    expected = {
        "ce": ([-p[0, 0].log(), -p[1, 2].log()], [p[0, 1].log(), p[1, 3].log()]),
        "margin": ([p[0, 1] - p[0, 0], p[1, 1] - p[1, 2]], [p[0, 1] - p[0, 0], p[1, 3] - p[1, 1]]),
        "log-margin": ([-1.5, 2.0], [-1.5, -1.0]),
        "dlr": ([-1.5 / 2.0, 2.0 / 2.0], [-1.5 / 2.5, 1.0 / 2.5]),
    }
    expected["mean-ce"] = expected["ce"]
    for towards, values in zip((None, target), expected[loss], strict=True):
        out = LOSSES[loss](log_p, y, towards)
        torch.testing.assert_close(out, torch.tensor([float(v) for v in values]).double())


def test_losses_of_several_draws_average_what_they_say():
    p = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]], dtype=torch.float64)
    y = torch.tensor([0])
    assert float(LOSSES["ce"](p.log(), y, None)) == pytest.approx(-math.log(0.5))
    assert float(LOSSES["mean-ce"](p.log(), y, None)) == pytest.approx(
        -(math.log(0.9) + math.log(0.1)) / 2
    )
    assert float(LOSSES["margin"](p.log(), y, None)) == pytest.approx(0)


def test_dlr_of_few_classes():
    y, target = torch.tensor([0]), torch.tensor([1])
    two = torch.tensor([[[0.0, 3.0]]]).log_softmax(2)
    assert float(dlr(two, y, None)) == pytest.approx(3.0, abs=1e-5)
    three = torch.tensor([[[0.0, 3.0, 1.0]]]).log_softmax(2)
    assert float(dlr(three, y, None)) == pytest.approx(1.0, abs=1e-5)
    assert float(dlr(three, y, target)) == pytest.approx(2.0, abs=1e-5)
    stuck = torch.tensor([[[3.0, 0.0, 1.0]]], requires_grad=True)  # y first, the target last
    (slope,) = torch.autograd.grad(dlr(stuck.log_softmax(2), y, target).sum(), stuck)
    assert float(slope.abs().sum()) > 0.5


class Linear(nn.Module):
    """The logit of class 1 is the sum of all pixels minus a bound; that of class 0 is zero."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1).sum(1, keepdim=True) - 18.5
        return torch.cat([torch.zeros_like(score), score], dim=1)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_linear_model_falls_just_above_its_distance_and_never_below(loss):
    x, y = torch.full((3, 1, 6, 6), 0.5), torch.zeros(3, dtype=torch.long)
    least = 0.5 / 36  # 36 pixels must rise by 0.5 in all
    for times, broken in ((1.01, 1.0), (0.99, 0.0)):
        for restarts in (1, 2):
            out = eot_pgd(Linear(), x, y, eps=times * least, steps=8, loss=loss, restarts=restarts)
            assert float(out.success.mean()) == broken


# With randomness


@given(
    eps=st.floats(0, 1),
    steps=st.integers(0, 3),
    norm=st.sampled_from(["linf", "l2"]),
    loss=st.sampled_from(sorted(LOSSES)),
    fresh=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9]),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    restarts=st.integers(1, 2),
    targeted=st.booleans(),
)
@settings(max_examples=25)
def test_stays_in_the_ball_and_in_range(eps, norm, **options):
    out = eot_pgd(mixup(), X, Y, eps=eps, norm=norm, draws=2, repeats=1, **options)
    sizes = out.linf if norm == "linf" else out.l2
    assert float(sizes.max()) <= eps + 1e-5
    assert 0 <= float(out.examples.min()) <= float(out.examples.max()) <= 1
    assert len(out.trace) == options["steps"] + 1


@pytest.mark.parametrize("restarts", [1, 2])
def test_each_point_is_attacked_on_its_own(restarts):
    index, rows = torch.arange(9) + 100, torch.tensor([4, 0, 8])
    options = SMALL | {"draws": 3, "restarts": restarts, "targeted": True}
    whole = eot_pgd(mixup(), X, Y, index=index, **options)
    part = eot_pgd(mixup(), X[rows], Y[rows], index=index[rows], batch_size=2, **options)
    torch.testing.assert_close(part.examples, whole.examples[rows])
    torch.testing.assert_close(part.loss, whole.loss[rows])
    assert torch.equal(part.fooled, whole.fooled[rows])


def test_the_global_generator_is_left_alone_and_runs_repeat():
    for module in (mixup(), Noisy(shared=False), Noisy(shared=True)):
        state = torch.get_rng_state()
        first = eot_pgd(module, X, Y, draws=3, **SMALL)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(5)
        second = eot_pgd(module, X, Y, draws=3, **SMALL)
        torch.testing.assert_close(first.examples, second.examples)
        assert torch.equal(first.fooled, second.fooled)


def test_where_randomness_comes_from_is_found_out():
    kinds = {
        "ours": mixup(),
        "frozen": mixup().frozen(),
        "fixed": MODEL,
        "rows": Noisy(shared=False),
        "call": Noisy(shared=True),
    }
    for kind, module in kinds.items():
        victim = QueryModel(module, X)
        assert victim.kind == kind
        with torch.no_grad():
            draws = victim.log_probs(X, torch.arange(9), 4, "a")
        spread = float(draws.std(1).max()) if draws.shape[1] > 1 else 0.0
        assert (spread > 1e-3) == victim.is_random
        assert draws.shape == (9, 4 if victim.is_random else 1, 3)


def test_fresh_draws_differ_from_step_to_step_and_common_ones_do_not():
    seen: list[str] = []

    class Spy(MixupInference):
        def draw(self, x, draws, *, index=None, stream=0):
            seen.append(str(stream))
            return super().draw(x, draws, index=index, stream=stream)

    spy = Spy(MODEL, POOL, draws=2)
    for fresh, streams in ((True, 4), (False, 2)):  # three steps and the last look
        seen.clear()
        eot_pgd(spy, X, Y, draws=2, fresh=fresh, **SMALL)
        assert len(set(seen)) == streams


@pytest.mark.parametrize(
    ("module", "look"),
    [(mixup(), 1), (GaussianNoise(MODEL, sigma=0.1, draws=4), 0), (Noisy(shared=False), 0)],
)
def test_passes_are_counted_exactly(module, look):
    out = eot_pgd(module, X, Y, draws=3, restarts=2, **SMALL)
    assert out.backward == 9 * 2 * 3 * 3  # restarts x steps x draws
    assert out.forward == 9 * 2 * (3 + 1) * (3 + look)  # and a last look at each restart


def test_memory_is_bounded_and_changes_nothing():
    largest = 0

    def see(_, args):
        nonlocal largest
        largest = max(largest, len(args[0]))

    handle = MODEL.register_forward_pre_hook(see)
    small = eot_pgd(mixup(chunk=8), X, Y, draws=12, batch_size=8, **SMALL)
    handle.remove()
    assert largest <= 8
    torch.testing.assert_close(small.examples, eot_pgd(mixup(), X, Y, draws=12, **SMALL).examples)


def test_restarts_keep_the_higher_loss():
    one = eot_pgd(MODEL, X, Y, **SMALL)
    three = eot_pgd(MODEL, X, Y, restarts=3, **SMALL)
    assert bool((three.loss >= one.loss).all())
    assert float(three.loss.sum()) > float(one.loss.sum())


def test_schedules():
    assert step_sizes(2.0, 4, "constant") == [2.0] * 4
    assert step_sizes(2.0, 2, "cosine") == pytest.approx([2.0, 1.0])
    with pytest.raises(InputError, match="schedule"):
        step_sizes(1.0, 1, "other")


# Judging


def test_judges_never_share_a_draw_with_attacks_or_with_each_other():
    seen: dict[str, list] = {}

    class Spy(MixupInference):
        def partners(self, y_hat, draws):
            out = super().partners(y_hat, draws)
            seen.setdefault(phase, []).append(draws.key)
            return out

    spy, phase = Spy(MODEL, POOL, draws=3), "attack"
    eot_pgd(spy, X, Y, draws=3, **(SMALL | {"repeats": 1}))
    attack_and_judge, phase = seen.pop("attack"), "judge"
    judge(spy, X, Y, repeats=3)
    phase = "choose"
    judge(spy, X, Y, repeats=3, stream="choose")
    assert set(attack_and_judge) & set(seen["judge"]) == {seen["judge"][0]}  # judged once in there
    assert attack_and_judge.count(seen["judge"][0]) == 1
    assert not set(seen["choose"]) & set(seen["judge"])
    assert not set(seen["choose"]) & set(attack_and_judge)


def test_judge_asks_the_whole_defence_again_and_again():
    defense = mixup(draws=1)
    fooled = judge(defense, X, Y, repeats=200)
    index = torch.arange(9)
    each = defense.draw(X, 4000, index=index, stream="other").argmax(2)
    torch.testing.assert_close(
        fooled.double().mean(1), (each != Y[:, None]).double().mean(1), atol=0.12, rtol=0
    )
    assert int((fooled.double().mean(1) % 1 > 0).sum()) > 0  # some points are undecided


def test_a_frozen_defence_is_judged_on_the_draws_that_were_attacked():
    defense = mixup()
    out = frozen(defense, X, Y, **SMALL)
    again = defense.frozen()(out.examples).argmax(1) != Y
    assert torch.equal(out.fooled[:, 0], again)
    assert out.backward == 9 * 3 * 4  # its own four draws
    outside = freeze(Noisy(shared=False))
    assert torch.equal(outside(X), outside(X))
    assert torch.equal(outside(X)[3:5], outside(X[3:5]))


def test_a_detector_is_fooled_by_what_is_wrong_and_not_flagged():
    detector = MixupDetector(MODEL, POOL, draws=3)
    with pytest.raises(InputError, match="threshold"):
        judge(detector, X, Y)
    detector.threshold = 0.0
    fooled = judge(detector, X, Y, repeats=2)
    wrong = MODEL(X).argmax(1) != Y
    for repeat in range(2):
        flagged = detector.detect(X, index=torch.arange(9), stream=f"judge {repeat}")
        assert torch.equal(fooled[:, repeat], wrong & ~flagged)


def test_averaged_is_a_plain_module_for_other_libraries():
    module = Averaged(mixup(), X, draws=500)
    torch.testing.assert_close(module(X).exp(), exact_expectation(X), atol=0.05, rtol=0)
    assert not torch.equal(module(X), module(X))
    assert base_of(module) is MODEL


def test_unknown_names_and_wrong_numbers_are_refused():
    for options, words in (
        ({"loss": "crossentropy"}, "loss"),
        ({"draws": 0}, "draws"),
        ({"restarts": 0}, "restarts"),
        ({"norm": "l1"}, "norm"),
        ({"eps": -1.0}, "eps"),
        ({"steps": -1}, "steps"),
        ({"momentum": -0.1}, "momentum"),
        ({"targets": torch.zeros(2, dtype=torch.long)}, "targets"),
    ):
        with pytest.raises(InputError, match=words):
            eot_pgd(mixup(), X, Y, **options)
    with pytest.raises(InputError, match="label"):
        eot_pgd(mixup(), X, Y + 1, **SMALL)
    with pytest.raises(InputError, match="logits"):
        eot_pgd(nn.Sequential(MODEL, nn.Softmax(1)), X, Y, **SMALL)


def test_dropout_that_is_meant_to_be_random_stays_so():
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)).eval()
    assert QueryModel(net, X).kind == "fixed"
    net[1].train()
    assert QueryModel(net, X).kind == "rows"
    assert judge(net, X, Y, repeats=4).shape == (9, 4)
    net.train()  # a model that was left in training mode is not a defence
    assert QueryModel(net, X).kind == "fixed"


def test_points_of_a_module_that_draws_once_a_call_are_judged_alone():
    sizes = []
    module = Noisy(shared=True)
    module.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    judge(module, X, Y, repeats=2)
    assert sizes[8:] == [1] * 18  # after eight calls to find out
    assert QueryModel(module, X).images(10) == 10


class Sometimes(nn.Module):
    """Not ours: turns the whole batch over, with a probability."""

    def __init__(self, probability: float, kind: str = "torch") -> None:
        super().__init__()
        self.probability = probability
        own = torch.Generator().manual_seed(3)
        self.draw = {
            "torch": lambda: float(torch.rand(())),
            "python": random.random,
            "numpy": np.random.random,
            "own": lambda: float(torch.rand((), generator=own)),
        }[kind]

    def forward(self, x: Tensor) -> Tensor:
        return MODEL(x.flip(3) if self.draw() < self.probability else x)


@pytest.mark.usefixtures("same_global_state")
@pytest.mark.parametrize("kind", ["torch", "python", "numpy"])
@pytest.mark.parametrize("probability", [0.01, 0.3, 0.99])
def test_a_module_that_draws_is_random_also_when_its_answers_are_the_same(kind, probability):
    module = Sometimes(probability, kind)
    assert QueryModel(module, X).kind == "call"
    fooled = judge(module, X, Y, repeats=30)
    assert fooled.shape == (9, 30)
    wrong = [(MODEL(images).argmax(1) != Y).double().mean() for images in (X, X.flip(3))]
    expected = (1 - probability) * wrong[0] + probability * wrong[1]
    assert abs(float(fooled.double().mean() - expected)) < 0.1
    first, second = (eot_pgd(module, X, Y, **SMALL) for _ in range(2))
    assert torch.equal(first.examples, second.examples)
    assert frozen(module, X, Y, **SMALL).fooled.shape == (9, 1)


def test_a_module_with_a_generator_of_its_own_cannot_be_frozen():
    module = Sometimes(0.5, "own")
    assert QueryModel(module, X).is_random
    with pytest.raises(InputError, match="generator of its own"):
        frozen(module, X, Y, **SMALL)


def test_a_defence_inside_another_module_is_attacked_with_draws_of_the_attacks():
    wrapped, index = nn.Sequential(nn.Identity(), mixup()).eval(), torch.arange(9)
    calls = wrapped[1].calls
    victim = QueryModel(wrapped, X)
    assert victim.kind == "rows"
    looks = [victim.log_probs(X, index, 3, "look", name) for name in ("a", "a", "b")]
    assert torch.equal(looks[0], looks[1])
    assert not torch.equal(looks[0], looks[2])
    runs = [eot_pgd(wrapped, X, Y, **SMALL) for _ in range(2)]
    assert torch.equal(runs[0].examples, runs[1].examples)
    assert torch.equal(runs[0].fooled, runs[1].fooled)
    assert wrapped[1].calls == calls


class Gamma(nn.Module):
    """A power of the pixels: where they are zero the gradient is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return MODEL(x**0.5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_infinite_gradients_lead_somewhere_in_the_ball(norm):
    black = X.clone()
    black[:, :, :2] = 0
    for attack in (eot_pgd, apgd_eot, transfer):
        out = attack(Gamma(), black, Y, eps=0.1, norm=norm, steps=4)
        assert bool(out.examples.isfinite().all())
        assert float(out.examples.min()) >= 0
        assert float((out.linf if norm == "linf" else out.l2).max()) <= 0.1 + 1e-6
        assert float((out.examples - black).abs().max()) > 0.01


def test_what_is_no_image_is_not_judged():
    with pytest.raises(InputError, match="NaN"):
        judge(MODEL, torch.full_like(X, torch.nan), Y)


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (eot_pgd, {"epsilon": 0.1}),
        (apgd_eot, {"momentum": 0.9}),
        (square_eot, {"steps": 3}),
        (transfer, {"restarts": 2}),
        (paper_adaptive, {"draws": 3}),
        (official_adaptive, {"draws": 3}),
        (frozen, {"epsilon": 0.1}),
        (peer_attack, {"steps": 3}),
    ],
)
def test_options_that_an_attack_does_not_have_are_refused(attack, options):
    with pytest.raises(TypeError, match="unknown option"):
        attack(mixup(), X, Y, **options)
    with pytest.raises(InputError, match="eps must be a number"):
        attack(mixup(), X, Y, eps="8/255")


def test_a_surrogate_that_contains_the_model_is_counted_once():
    around = nn.Sequential(nn.Identity(), MODEL)
    assert transfer(MODEL, X, Y, surrogates=[around], steps=4).backward == 4 * 9


def test_copies_of_a_point_count_for_the_size_of_a_batch():
    sizes = []
    hook = MODEL.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    for defense, attack in (
        (MODEL, partial(paper_adaptive, average="perturbations")),
        (mixup(fresh=False), partial(paper_adaptive, average="perturbations")),
        (mixup(fresh=False), official_adaptive),
    ):
        attack(defense, X, Y, samples=10, steps=1, batch_size=80)
    hook.remove()
    assert max(sizes) == 80


def test_a_module_without_gradients_is_not_an_error():
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return MODEL((4 * x).round().detach() / 4)

    out = eot_pgd(Rounded(), X, Y, random_start=False, **SMALL)
    assert torch.equal(out.examples, X)
    assert torch.equal(pgd(Rounded(), X, Y, steps=2, random_start=False), X)


def test_a_defence_inside_another_module_can_be_frozen():
    wrapped = nn.Sequential(mixup()).eval()
    out = frozen(wrapped, X, Y, **SMALL)
    assert out.fooled.shape == (9, 1)
    assert wrapped[0].fresh
    assert torch.equal(freeze(wrapped)(X), freeze(wrapped)(X))


def test_transfer_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second = (transfer(Noisy(shared=False), X, Y, **SMALL).examples for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
