"""BaRT, the barrage of random transforms (Raff et al., 2019)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from mixup_inference.defenses.bart.groups import COLOR_ONLY, GROUPS
from mixup_inference.defenses.base import Defense, Options
from mixup_inference.draws import Draws, make_key
from mixup_inference.validation import check_int

_ORDER, _MEMBER = range(2)  # slots of one draw; each transform has a stream of its own

_MEMBERS = {name: member for group in GROUPS.values() for name, member in group.items()}


class BarrageOfTransforms(Defense):
    """Apply several random transforms in random order, at most one of each group.

    Each has a random strength; see ``bart.groups``. F should have been trained on such images.
    ``transforms`` is how many, of 10 groups. Grey images have 8; a larger number means all of them.
    Rounding, JPEG and total variation have the gradient of the identity, the others their own.
    """

    surrogate_gradient = True

    def __init__(
        self, model: nn.Module, *, transforms: int = 5, **options: Unpack[Options]
    ) -> None:
        super().__init__(model, **options)
        self.transforms = check_int(transforms, what="transforms", least=0)

    def transform(self, x: Tensor, _: None, numbers: Draws, /) -> Tensor:
        """x, transformed several times."""
        count = numbers.state.shape[1]
        images = x.to(torch.promote_types(x.dtype, torch.float32)).repeat_interleave(count, dim=0)
        single = Draws(
            numbers.key,
            numbers.index.repeat_interleave(count),
            numbers.k.expand(len(x), -1).reshape(-1, 1),
        )
        for members in zip(*plan(single, self.transforms, channels=x.shape[1]), strict=True):
            images = _apply(images, single, members)
        return images.to(x.dtype).view(len(x), count, *x.shape[1:])


def plan(draws: Draws, transforms: int, *, channels: int) -> list[list[str]]:
    """For each row, the names of its transforms in order."""
    groups = [tuple(GROUPS[name]) for name in GROUPS if channels == 3 or name not in COLOR_ONLY]
    order = draws.uniform_block(_ORDER, (len(groups),))[:, 0].argsort(dim=1)[:, :transforms]
    member = draws.uniform_block(_MEMBER, (len(groups),))[:, 0].tolist()
    return [
        [groups[g][int(u[g] * len(groups[g]))] for g in row]
        for row, u in zip(order.tolist(), member, strict=True)
    ]


def _apply(images: Tensor, draws: Draws, names: tuple[str, ...]) -> Tensor:
    """Apply to each row the transform of its name, all rows of a name at once."""
    parts, places = [], []
    for name in dict.fromkeys(names):
        rows = torch.tensor([r for r, of_row in enumerate(names) if of_row == name])
        rows = rows.to(images.device)
        own = Draws(make_key(draws.key, name), draws.index[rows], draws.k[rows])
        parts.append(_MEMBERS[name](images[rows], own).clamp(0, 1))
        places.append(rows)
    return torch.cat(parts)[torch.cat(places).argsort()]
