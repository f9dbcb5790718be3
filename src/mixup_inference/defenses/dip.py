"""Data interpolating prediction (Shimada et al., 2019)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import nn

from mixup_inference.defenses.mixup import MixupInference, MixupOptions, Ratio
from mixup_inference.draws import Beta
from mixup_inference.pool import Pool

#: Cross-entropy is linear in the label. So training by mixup with lambda ~ Beta(a, a) is the same
#: in expectation as training on lambda x + (1 - lambda) x' with the label of x alone and
#: lambda ~ Beta(a + 1, a). This is it for a = 1, the uniform lambda of our trainings.
MIXUP_RATIO = Beta(2, 1)


class DataInterpolatingPrediction(MixupInference):
    """E F(lam x + (1 - lam) x') over all samples x', whatever their class, and a random ratio.

    The same mixing as in training, at inference. No label is looked at, neither that of x' nor the
    prediction on x: p_s(y) is the share of each class in the pool. The distribution of ``lam`` is
    that of mixup training, seen from x; see ``MIXUP_RATIO``. For the other arguments see
    ``MixupInference``.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        lam: Ratio = MIXUP_RATIO,
        **options: Unpack[MixupOptions],
    ) -> None:
        shares = torch.bincount(pool.labels, minlength=pool.classes).double() / len(pool)
        super().__init__(model, pool, labels=shares, lam=lam, **options)
