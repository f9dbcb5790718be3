"""The paper's adaptive attacks: Eq. 24, Section 4.4, and what the published code does."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks.base import Attacked, Batch, Common, Found, run, step_size
from mixup_inference.attacks.eot import ascend
from mixup_inference.attacks.threat_model import Ball, gradient_of
from mixup_inference.defenses import MixupInference
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.call import logits_of
from mixup_inference.pool import mix
from mixup_inference.validation import check_int


def paper_adaptive(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 10,
    step: float | None = None,
    samples: int = 30,
    average: Literal["gradients", "perturbations"] = "gradients",
    **options: Unpack[Common],
) -> Attacked:
    """The paper's adaptive PGD.

    ``average="gradients"`` is Eq. 24: the sign of the sum of the gradients at N_A mixed points,
    with new clean samples x_s in every step. That is ``eot_pgd`` on the mean cross-entropy.

    ``average="perturbations"`` is the variant of Section 4.4, as we read it: each of N_A
    adaptive samples has a trajectory of its own (from a common start, at its own mixed points,
    with a new x_s in every step), and the perturbations are averaged at the end.

    Args:
        defense: mixup inference, or any randomised defence.
        x: clean images in [0, 1].
        y: the true labels.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        samples: N_A, the number of adaptive samples.
        average: what is averaged over them.
        **options: see ``Common``.
    """
    if average not in ("gradients", "perturbations"):
        raise unknown_name("average", average, ["gradients", "perturbations"])
    sizes = check_int(steps, what="steps", least=0) * [step_size(step, options)]

    def attack(batch: Batch) -> Found:
        if average == "gradients":
            return ascend(batch, batch.start(), sizes, "mean-ce", samples)
        alone = _copies(batch, samples)
        start = batch.start().repeat_interleave(samples, dim=0)
        found = ascend(alone, start, sizes, "mean-ce", 1)
        delta = (found.examples - alone.x).view(-1, samples, *batch.x.shape[1:]).mean(1)
        examples = batch.ball.project(batch.x, batch.x + delta)
        last = batch.loss(examples, "mean-ce", samples, "last")
        trace = found.trace.view(len(found.trace), -1, samples).mean(2)
        return Found(examples, last, torch.cat([trace[:-1], last[None]]))

    copies = samples if average == "perturbations" else 1
    return run(
        "paper's PGD", defense, x, y, attack, options, draws=samples, ticks=steps, copies=copies
    )


def _copies(batch: Batch, samples: int) -> Batch:
    """Each point as often as there are samples, every copy with draws of its own."""
    copies = torch.arange(samples, device=batch.index.device)
    return replace(
        batch,
        x=batch.x.repeat_interleave(samples, dim=0),
        y=batch.y.repeat_interleave(samples, dim=0),
        target=None if batch.target is None else batch.target.repeat_interleave(samples, dim=0),
        index=(batch.index[:, None] * samples + copies).flatten(),
    )


def official_adaptive(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 10,
    step: float | None = None,
    samples: int = 30,
    **options: Unpack[Common],
) -> Attacked:
    """What the paper's published code does as its adaptive attack, kept with its faults.

    It is here so that Figure 4 can be compared, not to evaluate anything. The clean samples are
    drawn once, for classes other than the prediction on the clean image, and stay the same in all
    steps; each *mixed* image is moved away from the prediction on itself, which may be the class
    of x_s; it has a random start and an eps-ball of its own, so the perturbation is crafted at
    full size where the defence sees lam times it; the loss is that of single mixed images; and
    the perturbations of the mixed images are averaged and added to x.

    One fault is not kept: the published code lets pixels leave their range by this addition. Here
    they are brought back, because what is out of range is not an image.

    Args:
        defense: mixup inference (MI-OL or MI-PL), with a fixed or random ratio.
        x: clean images in [0, 1].
        y: the true labels; used for judging only, unless the attack is targeted.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        samples: the number of adaptive samples.
        **options: see ``Common``.
    """
    if not isinstance(defense, MixupInference):
        raise InputError(
            "the published adaptive attack is for mixup inference (mi-ol, mi-pl); "
            f"saw {type(defense).__name__}."
        )
    size = step_size(step, options)

    def attack(batch: Batch) -> Found:
        assert isinstance(batch.victim.module, MixupInference)
        return _official(batch.victim.module, batch, steps, size, samples)

    steps = check_int(steps, what="steps", least=0)
    return run(
        "published PGD", defense, x, y, attack, options, draws=samples, ticks=steps, copies=samples
    )


def _official(
    defense: MixupInference, batch: Batch, steps: int, size: float, samples: int
) -> Found:
    shape = batch.x.shape
    partner, lam = _partners(defense, batch, samples)
    mixed = mix(batch.x[:, None], partner, lam).flatten(0, 1)
    if batch.target is None:
        label = logits_of(defense.model, mixed).argmax(1)
    else:
        label = batch.target.repeat_interleave(samples)
    sign = 1.0 if batch.target is None else -1.0
    alone = _copies(batch, samples)
    ball = Ball("linf", batch.ball.eps)
    if batch.ball != ball:
        raise InputError("the published adaptive attack is for the norm linf only.")
    image = ball.start(mixed, alone.index, make_key(batch.seed, "official start"))
    losses = []
    for _ in range(steps):
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            values = sign * functional.cross_entropy(
                logits_of(defense.model, leaf), label, reduction="none"
            )
            gradient = gradient_of(values.sum(), leaf)
        batch.tick()
        losses.append(values.detach().view(-1, samples).mean(1))
        shared = gradient.view(shape[0], samples, *shape[1:]).mean(1)
        image = ball.project(
            mixed, ball.move(image, shared.repeat_interleave(samples, dim=0), size)
        )
    delta = (image - mixed).view(shape[0], samples, *shape[1:]).mean(1)
    examples = (batch.x + delta).clamp(0, 1)
    last = batch.loss(examples, "mean-ce", samples, "last")
    return Found(examples, last, torch.stack([*losses, last]))


def _partners(defense: MixupInference, batch: Batch, samples: int) -> tuple[Tensor, Tensor]:
    """The clean samples, drawn once for the prediction on the clean image, and the ratios."""
    y_hat = defense.base_log_probs(batch.x).argmax(1)
    key = make_key(defense.seed, "official adaptive", batch.seed)
    k = torch.arange(samples, device=batch.x.device)
    lam, numbers = defense.partners(y_hat, Draws(key, batch.index, k))
    partner = defense.pool.pixels(numbers, batch.x.dtype)
    return partner, lam.to(batch.x.dtype)[..., None, None, None]
