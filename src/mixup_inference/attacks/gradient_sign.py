"""FGSM, BIM and MI-FGSM: the one projected ascent from x itself, with one step, several, momentum.

Each goes through the whole defence, on the loss of the mean prediction over K draws, so on a model
without randomness it is the published attack. In l2 the step is along the gradient's unit vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.losses import LossName
from mixup_inference.attacks.options import Count, NotNegative
from mixup_inference.attacks.pgd import ascend
from mixup_inference.attacks.transfer import prepare_surrogates, transfer


@attack("FGSM", queries=lambda _: 1)
def fgsm(batch: Batch, *, draws: Count = 10, loss: LossName = "ce") -> BatchResult:
    """The fast gradient sign method (Goodfellow et al., 2015): x + eps sign(grad L(x)).

    Args:
        batch: the points under attack.
        draws: K, over which loss and gradient are averaged.
        loss: the objective, see ``LOSSES``.
        **options: see ``AttackOptions``.
    """
    return ascend(batch, batch.x, [batch.threat_model.eps], loss, draws)


@attack("BIM", queries=lambda call: call.steps)
def bim(
    batch: Batch,
    *,
    steps: Count = 10,
    step: NotNegative | None = None,
    draws: Count = 10,
    loss: LossName = "ce",
) -> BatchResult:
    """The basic iterative method (Kurakin et al., 2017): x' <- Clip(x' + step sign(grad L(x'))).

    PGD that begins at x. Kurakin et al. take steps of 1/255 and, with eps in 255ths, the smaller
    of eps + 4 and 1.25 eps of them: ten for 8/255.

    Args:
        batch: the points under attack.
        steps: how many.
        step: size of a step; a quarter of eps by default.
        draws: K, over which loss and gradient are averaged at every step.
        loss: the objective, see ``LOSSES``.
        **options: see ``AttackOptions``.
    """
    return ascend(batch, batch.x, batch.step_sizes(step, steps), loss, draws)


@attack("MI-FGSM", queries=lambda call: call.steps)
def momentum(
    batch: Batch,
    *,
    steps: Count = 10,
    step: NotNegative | None = None,
    decay: NotNegative = 1.0,
    draws: Count = 10,
    loss: LossName = "ce",
) -> BatchResult:
    """MI-FGSM (Dong et al., 2018): BIM along g <- decay g + grad / |grad|_1.

    Args:
        batch: the points under attack.
        steps: how many.
        step: size of a step; eps / steps by default, as in the paper.
        decay: of the accumulated direction g, the paper's mu.
        draws: K, over which loss and gradient are averaged at every step.
        loss: the objective, see ``LOSSES``.
        **options: see ``AttackOptions``.
    """
    sizes = batch.step_sizes(_share(batch, step, steps), steps)
    return ascend(batch, batch.x, sizes, loss, draws, momentum=decay)


@attack(
    "MI-FGSM, transferred",
    queries=lambda call: max(1, len(call.surrogates)),
    prepare=prepare_surrogates,
    fold=False,
)
def momentum_transfer(
    batch: Batch,
    *,
    surrogates: Sequence[nn.Module] = (),
    steps: Count = 10,
    step: NotNegative | None = None,
    decay: NotNegative = 1.0,
    draws: Count = 10,
) -> BatchResult:
    """MI-FGSM on surrogate models, what it was made for; see ``transfer``, ``momentum``.

    Without surrogates it is crafted on the undefended model: the oblivious attack.

    Args:
        batch: the points under attack.
        surrogates: classifiers that take the same images and have the same classes.
        steps: how many.
        step: size of a step; eps / steps by default, as in the paper.
        decay: of the accumulated direction.
        draws: of the defence, by which the loss is estimated.
        **options: see ``AttackOptions``.
    """
    found: BatchResult = transfer.__wrapped__(
        batch,
        surrogates=surrogates,
        steps=steps,
        step=_share(batch, step, steps),
        random_start=False,
        momentum=decay,
        draws=draws,
    )
    return found


def _share(batch: Batch, step: float | None, steps: int) -> float:
    """Return the size of a step, by default such that all of them together reach eps."""
    return batch.threat_model.eps / steps if step is None else step
