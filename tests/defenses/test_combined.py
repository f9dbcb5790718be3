from __future__ import annotations

import copy

import pytest
import torch

from mixup_inference import CombinedInference, InputError, MixupDetector, MixupInference
from mixup_inference.defenses import gap
from mixup_inference.draws import Draws, make_key


@pytest.fixture
def points(parts):
    test = parts["test"]
    return test.pixels, test.index


@pytest.mark.parametrize("convention", ["paper", "official"])
def test_is_put_together_from_its_parts(trained, pool, points, convention):
    x, index = points
    both = CombinedInference(trained, pool, threshold=0.02, convention=convention, draws=6)
    before = trained(x).log_softmax(1).detach()
    y_hat = before.argmax(1)
    pl = MixupInference(trained, pool, labels="predicted", lam=0.5, draws=6)
    ol = MixupInference(trained, pool, labels="other", lam=0.4, draws=6)
    detect, defend = (
        Draws(make_key(0, part, "index", 0), index, torch.arange(6))
        for part in ("detect", "defend")
    )
    after = pl.average(x, y_hat, detect)
    detected = gap(before, after, convention) > 0.02
    assert 0.05 < detected.float().mean() < 0.95  # both branches are taken
    undetected = before if convention == "paper" else after
    expected = torch.where(detected[:, None], ol.average(x, y_hat, defend), undetected)
    torch.testing.assert_close(both(x, index=index), expected, atol=1e-5, rtol=1e-5)


def test_extreme_thresholds(trained, pool, points):
    x, index = points
    never = CombinedInference(trained, pool, threshold=1.0, draws=3)
    torch.testing.assert_close(never(x, index=index), trained(x).log_softmax(1).detach())
    always = CombinedInference(trained, pool, threshold=-1.0, lam_defend=1.0, draws=3)
    torch.testing.assert_close(
        always(x, index=index), trained(x).log_softmax(1).detach(), atol=1e-5, rtol=1e-5
    )


def test_computes_mi_ol_for_detected_inputs_only(trained, pool, points):
    x, index = points
    model, count = copy.deepcopy(trained), []
    model.register_forward_pre_hook(lambda _, args: count.append(args[0].shape[0]))
    both = CombinedInference(model, pool, threshold=0.02, draws=6)
    both(x, index=index)
    y_hat = trained(x).argmax(1)
    after = both.detector.average(x, y_hat, both.part_numbers(x, index)[0])
    detected = int((gap(trained(x).log_softmax(1), after) > 0.02).sum())
    assert sum(count[: len(count)]) >= 200 * 7 + detected * 6
    count.clear()
    both(x, index=index)
    assert sum(count) == 200 + 200 * 6 + detected * 6


@pytest.mark.parametrize("chunk", [None, 7])
def test_draws_do_not_depend_on_what_else_is_in_the_batch(trained, pool, points, chunk):
    x, index = points
    both = CombinedInference(trained, pool, threshold=0.02, draws=4)
    parts = CombinedInference(trained, pool, threshold=0.02, draws=4, chunk=chunk)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    whole = both(x, index=index)
    pieces = torch.cat([parts(x[rows], index=index[rows]) for rows in order.split(33)])
    torch.testing.assert_close(pieces, whole[order], atol=1e-4, rtol=1e-4)


def test_is_differentiable_through_both_branches(trained, pool, points):
    x, index = points
    both = CombinedInference(trained, pool, threshold=0.02, draws=4)
    x = x.clone().requires_grad_()
    out = both(x, index=index)
    (gradient,) = torch.autograd.grad(out[:, 0].sum(), x)
    assert bool((gradient.flatten(1).norm(dim=1) > 0).all())
    assert not both(x.detach(), index=index).requires_grad


def test_reseed_fresh_and_state_dict(trained, pool, points):
    x, _ = points
    both = CombinedInference(trained, pool, threshold=-1.0, draws=2)
    assert set(both.state_dict()) == {f"model.{name}" for name in trained.state_dict()}
    first = both(x)
    assert not torch.equal(first, both(x))
    both.reseed(0)
    assert torch.equal(first, both(x))
    both.reseed(5)
    assert not torch.equal(first, both(x))
    frozen = CombinedInference(trained, pool, threshold=-1.0, draws=2, fresh=False)
    assert torch.equal(frozen(x), frozen(x))


def test_moves_with_its_parts(trained, pool):
    both = copy.deepcopy(CombinedInference(trained, pool)).to("meta")
    assert both.defender.pool.images.device.type == "meta"
    assert both.detector.model is both.model


def test_gap_conventions():
    before = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]).log()
    after = torch.tensor([[0.3, 0.6, 0.1], [0.2, 0.5, 0.3]]).log()
    torch.testing.assert_close(gap(before, after), torch.tensor([0.4, 0.3]))
    torch.testing.assert_close(gap(before, after, "official"), torch.tensor([0.1, 0.3]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"convention": "papr"}, "did you mean 'paper'"),
        ({"threshold": 3}, "threshold must be in"),
        ({"lam_detect": 2}, "lam must be in"),
    ],
)
def test_bad_settings(trained, pool, settings, words):
    for cls in (CombinedInference, MixupDetector):
        if cls is MixupDetector and "lam_detect" in settings:
            settings = {"lam": 2}
        with pytest.raises(InputError, match=words):
            cls(trained, pool, **settings)
