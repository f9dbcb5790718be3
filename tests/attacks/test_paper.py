"""The paper's adaptive attacks, and the attacks that go around the defence."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixup_inference import GaussianNoise, InputError, MixupInference, Pool, pgd
from mixup_inference.attacks import QueryModel, eot_pgd
from mixup_inference.attacks.paper import official_adaptive, paper_adaptive
from mixup_inference.attacks.transfer import transfer
from mixup_inference.draws import Draws, make_key

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).eval()
OTHER = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)).eval()
X = torch.rand(7, 1, 6, 6)
Y = torch.arange(7) % 3
POOL = Pool(torch.rand(12, 1, 6, 6), torch.arange(12) % 3)
SMALL = {"eps": 0.2, "steps": 3, "repeats": 2}


def mixup(**options) -> MixupInference:
    return MixupInference(MODEL, POOL, lam=0.6, **({"draws": 4} | options))


def test_equation_24_is_the_sign_of_the_sum_of_gradients_at_mixed_points():
    """One step from x, with the mixed points made here by hand."""
    defense, samples = mixup(), 5
    out = paper_adaptive(defense, X, Y, steps=1, step=0.05, samples=samples, eps=0.2, seed=7)
    start = eot_pgd(MODEL, X, Y, steps=0, eps=0.2, seed=7).examples
    key = make_key(defense.seed, "index", repr(("attack", 7, "step", 0, 0)))
    draws = Draws(key, torch.arange(7), torch.arange(samples))
    _, numbers = defense.partners(MODEL(start).argmax(1), draws)
    total = torch.zeros_like(X)
    for k in range(samples):
        u = (0.6 * start + 0.4 * POOL.images[numbers[:, k]]).requires_grad_()
        loss = functional.cross_entropy(MODEL(u), Y, reduction="sum")
        total += torch.autograd.grad(loss, u)[0]
    expected = (start + 0.05 * total.sign()).clamp(X - 0.2, X + 0.2).clamp(0, 1)
    torch.testing.assert_close(out.examples, expected)


def test_of_one_sample_both_variants_are_the_same():
    a, b = (
        paper_adaptive(mixup(), X, Y, samples=1, average=average, **SMALL)
        for average in ("gradients", "perturbations")
    )
    torch.testing.assert_close(a.examples, b.examples)


def test_perturbations_are_averaged_over_trajectories_of_their_own():
    samples, defense = 3, mixup()
    out = paper_adaptive(defense, X, Y, samples=samples, average="perturbations", **SMALL)
    victim = QueryModel(defense, X)
    start = eot_pgd(MODEL, X, Y, steps=0, eps=0.2).examples
    deltas = []
    for k in range(samples):
        image, index = start, torch.arange(7) * samples + k
        for step in range(3):
            leaf = image.detach().requires_grad_()
            loss = functional.nll_loss(
                victim.log_probs(leaf, index, 1, "step", 0, step)[:, 0], Y, reduction="sum"
            )
            image = image + 0.05 * torch.autograd.grad(loss, leaf)[0].sign()
            image = image.clamp(X - 0.2, X + 0.2).clamp(0, 1)
        deltas.append(image - X)
    torch.testing.assert_close(out.examples, X + torch.stack(deltas).mean(0))
    assert out.backward == 7 * 3 * samples


@pytest.mark.parametrize("targeted", [False, True])
def test_the_published_attack_fault_for_fault(targeted):
    """The double loop of the published code, written plainly for one point."""
    defense, samples, eps, size, steps = mixup(), 4, 0.2, 0.05, 3
    targets = (Y + 1) % 3 if targeted else None
    out = official_adaptive(
        defense, X, Y, steps=steps, step=size, samples=samples, eps=eps, targets=targets
    )
    for i in (0, 5):
        key = make_key(defense.seed, "official adaptive", 0)
        clean_label = MODEL(X[i : i + 1]).argmax(1)  # (g) of the clean image
        draws = Draws(key, torch.tensor([i]), torch.arange(samples))
        _, numbers = defense.partners(clean_label, draws)
        assert bool((POOL.labels[numbers] != clean_label).all())
        mixed = 0.6 * X[i] + 0.4 * POOL.images[numbers[0]]
        label = MODEL(mixed).argmax(1)  # (a) each mixed image's own prediction
        if targeted:
            label = targets[i].repeat(samples)
        rows = i * samples + torch.arange(samples)
        unit = Draws.once(make_key(0, "official start"), rows).uniform_block(0, (1, 6, 6))[:, 0]
        adv = (mixed + eps * (2 * unit - 1)).clamp(0, 1)  # (e) a start each, (b) ball around u
        for _ in range(steps):  # (c) the same x_s in all steps
            adv = adv.detach().requires_grad_()
            loss = functional.cross_entropy(MODEL(adv), label, reduction="sum")  # (d)
            gradient = torch.autograd.grad(loss, adv)[0].mean(0)
            stepped = adv + (-1 if targeted else 1) * size * gradient.sign()
            adv = (mixed + (stepped - mixed).clamp(-eps, eps)).clamp(0, 1)
        expected = (X[i] + (adv - mixed).mean(0)).clamp(0, 1)
        torch.testing.assert_close(out.examples[i], expected.detach(), atol=1e-5, rtol=0)


def test_the_published_attack_counts_and_refuses():
    out = official_adaptive(mixup(), X, Y, samples=5, **SMALL)
    assert out.backward == 7 * 3 * 5
    # the clean label; each mixed image's label; the steps; the last look
    assert out.forward == 7 * (1 + 5 + 3 * 5 + (1 + 5))
    assert float(out.linf.max()) <= 0.2 + 1e-6
    with pytest.raises(InputError, match="mixup inference"):
        official_adaptive(GaussianNoise(MODEL, sigma=0.1), X, Y, **SMALL)
    with pytest.raises(InputError, match="linf"):
        official_adaptive(mixup(), X, Y, norm="l2", **SMALL)
    with pytest.raises(InputError, match="average"):
        paper_adaptive(mixup(), X, Y, average="nothing", **SMALL)


@pytest.mark.parametrize("samples", [1, 3])
def test_batches_do_not_matter(samples):
    for attack in (official_adaptive, paper_adaptive):
        whole = attack(mixup(), X, Y, samples=samples, **SMALL)
        parts = attack(mixup(), X, Y, samples=samples, batch_size=4, **SMALL)
        torch.testing.assert_close(whole.examples, parts.examples)


def test_without_surrogates_transfer_is_the_oblivious_attack():
    out = transfer(mixup(), X, Y, **SMALL)
    expected = pgd(MODEL, X, Y, eps=0.2, step=0.05, steps=3)
    torch.testing.assert_close(out.examples, expected)
    assert out.backward == 7 * 3
    assert out.forward == 7 * (3 + 2 * (1 + 10))  # and two looks at the defence for the loss


def test_of_several_surrogates_the_higher_loss_is_kept_and_all_passes_count():
    one, other = (transfer(mixup(), X, Y, surrogates=[m], **SMALL) for m in (MODEL, OTHER))
    both = transfer(mixup(), X, Y, surrogates=[MODEL, OTHER], **SMALL)
    torch.testing.assert_close(both.loss, torch.maximum(one.loss, other.loss))
    assert both.backward == 7 * 3 * 2
    assert both.forward == 7 * (2 * 3 + 3 * (1 + 10))
    with pytest.raises(InputError, match="surrogates"):
        transfer(mixup(), X, Y, surrogates=["erm"], **SMALL)
