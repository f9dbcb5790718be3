"""The paper's adaptive attacks: Eq. 24, Section 4.4, and the published code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.options import Count, Natural, NotNegative
from mixup_inference.attacks.pgd import ascend
from mixup_inference.attacks.threat_model import gradient_ascent, gradient_of
from mixup_inference.defenses import MixupInference
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.models.call import logits_of
from mixup_inference.pool import mix


@attack(
    "paper's PGD",
    queries=lambda call: call.steps,
    copies=lambda call: call.samples if call.average == "perturbations" else 1,
)
def paper_adaptive(
    batch: Batch,
    *,
    steps: Natural = 10,
    step: NotNegative | None = None,
    samples: Count = 30,
    average: Literal["gradients", "perturbations"] = "gradients",
) -> BatchResult:
    """The paper's adaptive PGD.

    ``average="gradients"`` is Eq. 24: the sign of the sum of the gradients at N_A mixed points,
    with new clean samples x_s in every step. That is ``eot_pgd`` on the mean cross-entropy.

    ``average="perturbations"`` is the variant of Section 4.4, as we read it: each of N_A adaptive
    samples has a trajectory of its own (from a common start, at its own mixed points, with a new
    x_s in every step), and the perturbations are averaged at the end.

    Args:
        batch: the points under attack.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        samples: N_A, the number of adaptive samples.
        average: what is averaged over them.
        **options: see ``AttackOptions``.
    """
    sizes = batch.step_sizes(step, steps)
    if average == "gradients":
        return ascend(batch, batch.start(), sizes, "mean-ce", samples)
    alone = _copies(batch, samples)
    start = batch.start().repeat_interleave(samples, dim=0)
    found = ascend(alone, start, sizes, "mean-ce", 1)
    delta = (found.examples - alone.x).view(-1, samples, *batch.x.shape[1:]).mean(1)
    examples = batch.threat_model.project(batch.x, batch.x + delta)
    last = batch.loss(examples, "mean-ce", samples, "last")
    trace = found.trace.view(len(found.trace), -1, samples).mean(2)
    return BatchResult(examples, last, torch.cat([trace[:-1], last[None]]))


def _copies(batch: Batch, samples: int) -> Batch:
    """Repeat each point once per sample, every copy with draws of its own."""
    copies = torch.arange(samples, device=batch.index.device)
    return replace(
        batch,
        x=batch.x.repeat_interleave(samples, dim=0),
        y=batch.y.repeat_interleave(samples, dim=0),
        target=None if batch.target is None else batch.target.repeat_interleave(samples, dim=0),
        index=(batch.index[:, None] * samples + copies).flatten(),
    )


def _mixup_inference(call: Any) -> None:
    """Refuse what the published code cannot attack."""
    if not isinstance(call.defense, MixupInference):
        raise InputError(
            "the published adaptive attack is for mixup inference (mi-ol, mi-pl); "
            f"saw {type(call.defense).__name__}."
        )
    if call.options.norm != "linf":
        raise InputError("the published adaptive attack is for the norm linf only.")


@attack(
    "published PGD",
    queries=lambda call: call.steps,
    copies=lambda call: call.samples,
    prepare=_mixup_inference,
)
def official_adaptive(
    batch: Batch, *, steps: Natural = 10, step: NotNegative | None = None, samples: Count = 30
) -> BatchResult:
    """The adaptive attack of the paper's published code, with its faults.

    It serves to compare Figure 4, not to evaluate defences. The clean samples are drawn once, for
    classes other than the prediction on the clean image, and stay the same in all steps; each
    *mixed* image is moved away from the prediction on itself, which may be the class of x_s; it has
    a random start and an eps-ball of its own, so the perturbation is crafted at full size where the
    defence sees lam times it; the loss is that of single mixed images; and the perturbations of the
    mixed images are averaged and added to x.

    One fault is corrected: the published code lets pixels leave their range by this addition. Here
    they are clipped, because the result would not be an image.

    Args:
        batch: the points under attack.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        samples: the number of adaptive samples.
        **options: see ``AttackOptions``.
    """
    defense, shape = batch.model.module, batch.x.shape
    assert isinstance(defense, MixupInference)
    partner, lam = _partners(defense, batch, samples)
    mixed = mix(batch.x[:, None], partner, lam).flatten(0, 1)
    if batch.target is None:
        label = logits_of(defense.model, mixed).argmax(1)
    else:
        label = batch.target.repeat_interleave(samples)
    sign = 1.0 if batch.target is None else -1.0
    key = make_key(batch.seed, "official start")
    start = batch.threat_model.start(mixed, _copies(batch, samples).index, key)
    image, losses = start, []

    def gradient(image: Tensor, _: int) -> Tensor:
        leaf = image.detach().requires_grad_()
        with torch.enable_grad():
            values = sign * functional.cross_entropy(
                logits_of(defense.model, leaf), label, reduction="none"
            )
            found = gradient_of(values.sum(), leaf)
        batch.tick()
        losses.append(values.detach().view(-1, samples).mean(1))
        shared = found.view(shape[0], samples, *shape[1:]).mean(1)
        return shared.repeat_interleave(samples, dim=0)

    sizes = batch.step_sizes(step, steps)
    for iterate in gradient_ascent(mixed, start, batch.threat_model, gradient, sizes):
        image = iterate
    delta = (image - mixed).view(shape[0], samples, *shape[1:]).mean(1)
    examples = (batch.x + delta).clamp(0, 1)
    last = batch.loss(examples, "mean-ce", samples, "last")
    return BatchResult(examples, last, torch.stack([*losses, last]))


def _partners(defense: MixupInference, batch: Batch, samples: int) -> tuple[Tensor, Tensor]:
    """Draw the clean samples, once, for the prediction on the clean image, and the ratios."""
    y_hat = defense.base_log_probs(batch.x).argmax(1)
    key = make_key(defense.seed, "official adaptive", batch.seed)
    k = torch.arange(samples, device=batch.x.device)
    lam, numbers = defense.partners(y_hat, Draws(key, batch.index, k))
    partner = defense.pool.pixels(numbers, batch.x.dtype)
    return partner, lam.to(batch.x.dtype)[..., None, None, None]
