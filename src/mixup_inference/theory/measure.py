"""Section 3.2 measured on a model and its adversarial examples.

H is not known for a real model, so the measured H is F on clean points and on their mixtures:
G(delta; x0) = F(x0 + delta) - F(x0), and at x~0 likewise, for delta and for lam delta.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixup_inference.attacks.query import accelerate
from mixup_inference.defenses import MixupInference, make_defense
from mixup_inference.errors import InputError
from mixup_inference.models.call import logits_of, refuse_probabilities
from mixup_inference.pool import Pool, mix
from mixup_inference.theory.formulas import Kind, check_arguments
from mixup_inference.theory.quantities import Analysis, Counts, Passes, summarize
from mixup_inference.utils.progress import SILENT, Progress, Task
from mixup_inference.validation import check_images, check_index, check_int, check_labels


def analyze(
    model: nn.Module,
    pool: Pool,
    x_clean: Tensor,
    x_adv: Tensor,
    y: Tensor,
    *,
    kind: Kind,
    lam: float,
    draws: int = 30,
    seed: int = 0,
    index: Tensor | None = None,
    batch_size: int = 100,
    progress: Progress = SILENT,
) -> Analysis:
    """Measure the quantities of Section 3.2, over the points that satisfy Eq. 2.

    The partners x_s are those that ``MixupInference`` with this seed draws for these ``index``
    (0, 1, 2, ... by default); F(x~0), F(x~0 + delta) and F(x~) of a point share them. x~0 + delta
    may leave [0, 1] by up to |delta| and is not clipped: clipped, it would be another perturbation.

    Args:
        model: the classifier F.
        pool: the clean samples.
        x_clean: x0, in [0, 1].
        x_adv: x0 + delta, row by row.
        y: the true labels.
        kind: "mi-pl" or "mi-ol".
        lam: the mixing ratio, one number.
        draws: N of Eq. 6.
        seed: of the draws.
        index: the points' positions in their data set.
        batch_size: how many images pass through F at once.
        progress: where to report.
    """
    check_arguments(kind, lam, pool.classes)
    lam = float(lam)
    check_int(batch_size, what="batch_size", least=1)
    check_images(x_clean, what="x_clean")
    check_images(x_adv, what="x_adv")
    if (x_clean.shape, x_clean.dtype) != (x_adv.shape, x_adv.dtype):
        raise InputError(
            "x_clean and x_adv must be the same points before and after the attack; saw "
            f"{x_clean.dtype} of shape {tuple(x_clean.shape)} and {x_adv.dtype} of shape "
            f"{tuple(x_adv.shape)}."
        )
    y = check_labels(y, count=len(x_clean), classes=pool.classes).to(x_clean.device)
    index = torch.arange(len(y)) if index is None else index
    index = check_index(index, count=len(y), device=x_clean.device)
    model = accelerate(model, x_clean[:8], images=4 * len(y) * draws)
    mi = make_defense(kind, model, pool, lam=lam, draws=draws, seed=seed)
    assert isinstance(mi, MixupInference)
    with torch.no_grad():
        mi.base_log_probs(x_clean[:1])  # raises if model, pool and images do not fit
        clean, adversarial = (probabilities(model, x, batch_size) for x in (x_clean, x_adv))
        use, counts = _obeying_eq_2(clean.argmax(1), adversarial.argmax(1), y)
        clean, adversarial, y, index = (part[use] for part in (clean, adversarial, y, index))
        x_0, delta = x_clean[use], x_adv[use] - x_clean[use]
        none, y_hat = torch.zeros_like(delta), adversarial.argmax(1)
        with progress.task(f"analyze {kind}", 4 * len(y) * draws) as task:
            (clean_mi,) = _mixtures(mi, x_0, [none], y, index, batch_size, task)
            shifts = [none, delta, lam * delta]
            mixed, unshrunk, shrunk = _mixtures(mi, x_0, shifts, y_hat, index, batch_size, task)
    passes = Passes(clean, clean_mi, adversarial, shrunk, mixed, unshrunk)
    return summarize(passes, y, kind=kind, lam=lam, draws=draws, counts=counts)


def probabilities(model: nn.Module, x: Tensor, batch_size: int | None = None) -> Tensor:
    """Softmax F(x) in float64, shape (batch, classes)."""
    logits = torch.cat([logits_of(model, part) for part in x.split(batch_size or len(x))])
    refuse_probabilities(logits)
    out = logits.double().softmax(1)
    if bool(out.isnan().any()):
        raise InputError("the model's predictions contain NaN; look at its weights and its input.")
    return out


def _obeying_eq_2(clean: Tensor, attacked: Tensor, y: Tensor) -> tuple[Tensor, Counts]:
    """Which points are right when clean and wrong when attacked (Eq. 2), and how many are not."""
    right = clean == y
    use = right & (attacked != y)
    used, wrong = int(use.sum()), int((~right).sum())
    counts = Counts(used=used, clean_wrong=wrong, attack_failed=len(y) - used - wrong)
    if used < 2:
        raise InputError(
            f"{used} of {len(y)} points satisfy Eq. 2 (right when clean, wrong when attacked), and "
            f"a standard error needs two: {wrong} are wrong when clean, on {counts.attack_failed} "
            "the attack failed. Give more points, or attack harder."
        )
    return use, counts


def _mixtures(
    mi: MixupInference,
    x_0: Tensor,
    shifts: Sequence[Tensor],
    y_hat: Tensor,
    index: Tensor,
    batch_size: int,
    task: Task,
) -> Tensor:
    """F(x~0 + shift) averaged over the draws, shape (shifts, points, classes)."""
    device, numbers = x_0.device, mi.numbers(x_0, index)
    size = (len(shifts), len(x_0), mi.pool.classes)
    out = torch.zeros(size, dtype=torch.float64, device=device)
    for rows in torch.arange(len(x_0), device=device).split(max(1, batch_size // mi.draws)):
        for k in numbers.k.split(batch_size):
            lam, chosen = mi.partners(y_hat[rows], numbers.at(rows, k))
            lam = lam.to(x_0.dtype)[..., None, None, None]
            mixed = mix(x_0[rows, None], mi.pool.pixels(chosen, x_0.dtype), lam)  # x~0
            for total, shift in zip(out, shifts, strict=True):
                p = probabilities(mi.model, (mixed + shift[rows, None]).flatten(0, 1))
                total[rows] += p.view(*chosen.shape, -1).sum(1) / mi.draws
            task.advance(len(shifts) * chosen.numel())
    return out
