"""The attack of Carlini and Wagner (2017) in l2: the nearest example that fools, by gradients."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.options import Count, NotNegative, Range
from mixup_inference.attacks.threat_model import length, per_sample
from mixup_inference.errors import InputError

#: Pixels at 0 and 1 are infinitely far away under arctanh, so they are moved in by so little.
_INSIDE = 0.999999


def _in_l2(call: Any) -> None:
    if call.options.norm != "l2":
        raise InputError("carlini_wagner looks for the nearest example in l2; give norm='l2'.")


@attack("C&W", queries=lambda call: call.searches * call.steps, prepare=_in_l2)
def carlini_wagner(
    batch: Batch,
    *,
    steps: Count = 200,
    searches: Count = 9,
    constant: Annotated[float, Range(1e-12)] = 1e-3,
    learning_rate: NotNegative = 0.01,
    confidence: NotNegative = 0.0,
    draws: Count = 10,
) -> BatchResult:
    """Minimise |x' - x|^2 + c max(confidence - lead(x'), 0) over w, where x' = (tanh w + 1) / 2.

    The lead is that of the best wrong class (or of the target) in the log of the mean prediction
    over K fresh draws: of a model without randomness, the difference of logits. Adam makes the
    steps, anew for each c; c is ten times larger where nothing was found, and bisected afterwards.

    The result is the nearest iterate that fooled its own draws; where none did, the one that came
    nearest to it. It does not use up eps: what lies within is returned as it is, what lies outside
    is projected onto the ball, where it may no longer fool. So at a given eps it is no stronger
    than PGD, and against a random defence it stops where about half of the answers are wrong:
    raise ``confidence``. With an eps that no image exceeds, ``l2`` of the result is the distance.

    The published code of mixup inference has confidence 0.1, one search, 1,000 steps and c = 0.01.

    Args:
        batch: the points under attack.
        steps: of Adam, for each c.
        searches: how many values of c are tried.
        constant: the first c.
        learning_rate: of Adam, in w.
        confidence: by how much a wrong class must lead, in logits.
        draws: K, over which lead and gradient are averaged at every step.
        **options: see ``AttackOptions``; the norm must be "l2".
    """
    x = batch.x
    origin = torch.atanh(_INSIDE * (2 * x - 1))
    start = (origin.tanh() + 1) / 2
    c = torch.full_like(x[:, 0, 0, 0], constant)
    low, high = torch.zeros_like(c), torch.full_like(c, torch.inf)
    nearest, distance = x, torch.full_like(c, torch.inf)
    closest, most = x, torch.full_like(c, -torch.inf)
    for search in range(searches):
        w = origin.clone()
        adam = torch.optim.Adam([w], lr=learning_rate)
        found = torch.zeros_like(c, dtype=torch.bool)
        for step in range(steps):
            image = (w.tanh() + 1) / 2
            lead, uphill = batch.loss_and_gradient(image, "log-margin", draws, "cw", search, step)
            behind = per_sample(c * (lead < confidence))
            w.grad = (2 * (image - start) - behind * uphill) * (1 - w.tanh().square()) / 2
            adam.step()
            fools, far = lead > confidence, length(image - x)
            nearer, further = fools & (far < distance), lead > most
            nearest = torch.where(per_sample(nearer), image, nearest)
            distance = torch.where(nearer, far, distance)
            closest = torch.where(per_sample(further), image, closest)
            most, found = torch.where(further, lead, most), found | fools
        low, high = torch.where(found, low, c), torch.where(found, c, high)
        c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
    best = torch.where(per_sample(distance.isinf()), closest, nearest)
    examples = batch.threat_model.project(x, best)
    first = batch.loss(x, "log-margin", draws, "first")
    last = batch.loss(examples, "log-margin", draws, "last")
    return BatchResult(examples, last, torch.stack([first, last]))
