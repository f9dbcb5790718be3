"""Total variation minimisation (Guo et al., 2018)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.base import Defense, Options
from mixup_inference.defenses.filters import straight_through
from mixup_inference.draws import Draws
from mixup_inference.validation import check_int, check_number


class TotalVariationMinimization(Defense):
    """Drop pixels at random, and reconstruct the smoothest image that agrees with the others.

    With M = 1 where a value was kept, the image is argmin_z 1/2 |M (z - x)|^2 + weight TV(z), where
    TV is the sum of the lengths of the gradients of each channel. Guo et al. drop half of the
    values and use the weight 0.03; their code minimises this by the split Bregman method, and this
    one by ``steps`` iterations of a primal-dual method. The gradient is that of the identity.
    """

    surrogate_gradient = True

    def __init__(
        self,
        model: nn.Module,
        *,
        weight: float = 0.03,
        drop: float = 0.5,
        steps: int = 40,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, **options)
        self.weight = check_number(weight, what="weight", least=0)
        self.drop = check_number(drop, what="drop", least=0, most=1)
        self.steps = check_int(steps, what="steps", least=1)

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """The reconstructions."""
        kept = numbers.uniform_block(0, tuple(x.shape[1:])) >= self.drop
        x = x[:, None].expand(*kept.shape)
        with torch.no_grad():
            found = minimize_total_variation(x, kept, weight=self.weight, steps=self.steps)
        return straight_through(found.to(x.dtype), x)


def minimize_total_variation(
    x: Tensor, kept: Tensor | None = None, *, weight: float | Tensor, steps: int
) -> Tensor:
    """argmin_z 1/2 |kept (z - x)|^2 + weight TV(z) on the last two dimensions.

    Chambolle and Pock (2011), Algorithm 1. TV is isotropic, with forward differences; ``weight``
    broadcasts.
    """
    tau, sigma = 2.0, 1 / 16  # tau sigma |grad|^2 <= 1, where |grad|^2 <= 8
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    data = torch.ones_like(x) if kept is None else kept.to(x.dtype)
    # Start at the mean of what was kept where nothing is known.
    mean = (data * x).sum((-2, -1), keepdim=True) / data.sum((-2, -1), keepdim=True).clamp(min=1)
    z = torch.where(data > 0, x, mean)
    share = 1 / (1 + tau * data)
    pulled = tau * data * x * share
    most = torch.as_tensor(weight).to(x).clamp(min=1e-12)
    ahead, down, right = z, torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(steps):
        down[..., :-1, :] += sigma * ahead.diff(dim=-2)
        right[..., :-1] += sigma * ahead.diff(dim=-1)
        length = torch.addcmul(down * down, right, right).sqrt_()
        shrink = most / torch.maximum(length, most)
        down *= shrink
        right *= shrink
        before = z
        z = z + tau * (_backward(down, -2) + _backward(right, -1))
        z = torch.addcmul(pulled, z, share)
        ahead = 2 * z - before
    return z


def _backward(p: Tensor, dim: int) -> Tensor:
    """Backward differences: minus the adjoint of the forward differences, whose last is 0."""
    first = p.narrow(dim, 0, 1)
    return torch.cat([first, p.diff(dim=dim)], dim=dim)
