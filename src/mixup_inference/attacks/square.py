"""The Square attack (Andriushchenko et al., 2020) on the average over draws: no gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.options import Count, Share
from mixup_inference.attacks.threat_model import length, per_sample
from mixup_inference.draws import Draws, make_key

#: After so many queries a random defence is queried with new draws.
REFRESH = 50


@attack("Square", queries=lambda call: call.queries)
def square_eot(
    batch: Batch, *, queries: Count = 500, draws: Count = 10, p_init: Share = 0.8
) -> BatchResult:
    """Random squares, kept where they raise the margin of the mean prediction over draws.

    One query evaluates one image, with ``draws`` copies of it behind the defence. All are spent:
    there is no early stop, on a lucky draw or otherwise. A candidate is compared with the current
    image on the same draws. Every fiftieth query evaluates the current image on new draws, so that
    a candidate that was only lucky on the old ones does not last. (New draws for every candidate
    cost half of the budget, and were weaker in our trials. An attacker behind a network cannot ask
    for the same draws twice; allowing it errs on the side of the attack.) A defence without
    randomness is queried once about each image.

    The margin is of log-probabilities ("log-margin" in ``LOSSES``). The loss of the result is
    estimated on draws that chose nothing, with one more query. No gradient is taken.

    Args:
        batch: the points under attack.
        queries: the budget for each point.
        draws: K, over which every query is averaged.
        p_init: the share of the pixels that the first squares cover; it falls with the queries as
            in the paper.
        **options: see ``AttackOptions``.
    """
    begin, propose = (_stripes, _square) if batch.threat_model.norm == "linf" else (_tiles, _window)
    refresh = REFRESH if batch.model.is_random else queries
    image, trace = begin(batch, _numbers(batch, 0)), []
    now = image.new_empty(0)
    for query in range(queries):
        stream = ("square", query // refresh)
        if query % refresh == 0:
            now = batch.loss(image, "log-margin", draws, *stream)
        else:
            share = p_init * _shrink((query - 1) / queries)
            new = propose(batch, image, share, _numbers(batch, query))
            margin = batch.loss(new, "log-margin", draws, *stream)
            wins = margin > now
            image = torch.where(per_sample(wins), new, image)
            now = torch.where(wins, margin, now)
        trace.append(now)
        batch.tick()
    last = batch.loss(image, "log-margin", draws, "last")
    return BatchResult(image, last, torch.stack([*trace, last]))


def _shrink(spent: float) -> float:
    """Return the factor of ``p_init`` when a share of the budget is spent: halved nine times."""
    after = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries
    return 0.5 ** sum(int(10000 * spent) > number for number in after)


def _stripes(batch: Batch, numbers: Draws) -> Tensor:
    """Start in linf: every column of every channel goes up or down by eps."""
    c, _, w = batch.x.shape[1:]
    signs = _signs(numbers, 0, (c, 1, w)).to(batch.x)
    return batch.threat_model.project(batch.x, batch.x + batch.threat_model.eps * signs)


def _square(batch: Batch, image: Tensor, share: float, numbers: Draws) -> Tensor:
    """Propose in linf: one square, each channel of which goes up or down by eps."""
    side = _side(batch.x, share)
    inside = _inside(batch.x, side, *_corner(batch.x, side, numbers, 0))
    signs = _signs(numbers, 2, (batch.x.shape[1], 1, 1)).to(batch.x)
    moved = batch.threat_model.project(batch.x, batch.x + batch.threat_model.eps * signs)
    return torch.where(inside, moved, image)


def _tiles(batch: Batch, numbers: Draws) -> Tensor:
    """Start in l2: a grid of bumps, about five by five, of random signs and directions."""
    c, h, w = batch.x.shape[1:]
    side = max(min(h, w) // 5, 1)
    m, n = h // side, w // side

    def spread(values: Tensor) -> Tensor:
        return values.repeat_interleave(side, 2).repeat_interleave(side, 3)

    bump = _bump(side).to(batch.x)
    up = spread(_signs(numbers, 0, (c, m, n))).to(batch.x)
    flat = spread(_signs(numbers, 1, (1, m, n))) > 0
    delta = up * torch.where(flat, bump.repeat(m, n), bump.T.repeat(m, n))
    top, left = (h - m * side) // 2, (w - n * side) // 2
    canvas = torch.zeros_like(batch.x)
    canvas[:, :, top : top + m * side, left : left + n * side] = delta
    return _stretch(batch, canvas)


def _window(batch: Batch, image: Tensor, share: float, numbers: Draws) -> Tensor:
    """Propose in l2: a bump added to one window, with the budget that another one gives up."""
    c = batch.x.shape[1]
    delta = image - batch.x
    side = _side(batch.x, share, odd=True)
    here, there = (_corner(batch.x, side, numbers, slot) for slot in (0, 2))
    giving = _inside(batch.x, side, *there)
    spare = (batch.threat_model.eps**2 - per_sample(length(delta)) ** 2).clamp(min=0)
    both = delta * (giving | _inside(batch.x, side, *here))
    budget = spare / c + both.square().sum((2, 3), keepdim=True)
    bump = _bump(side).to(batch.x)
    bump = torch.where(_signs(numbers, 5, (1, 1, 1)) > 0, bump, bump.T)
    cells = torch.arange(side, device=image.device)
    at = (
        torch.arange(len(image), device=image.device)[:, None, None, None],
        torch.arange(c, device=image.device)[:, None, None],
        (here[0][:, None] + cells)[:, None, :, None],
        (here[1][:, None] + cells)[:, None, None, :],
    )
    new = _unit(delta[at]) + bump * _signs(numbers, 4, (c, 1, 1)).to(batch.x)
    delta = delta.masked_fill(giving, 0)
    delta[at] = _unit(new) * budget.sqrt()
    return _stretch(batch, delta)


def _stretch(batch: Batch, delta: Tensor) -> Tensor:
    """Return the image that lies eps away in this direction, or less where [0, 1] ends."""
    out = batch.x + batch.threat_model.eps * delta / per_sample(length(delta) + 1e-12)
    return batch.threat_model.project(batch.x, out)


def _bump(side: int) -> Tensor:
    """Build two pyramids side by side, one up and one down, of joint length one (Section 3.3)."""
    halves = []
    for sign, height in ((1, side // 2), (-1, side - side // 2)):
        down, across = (torch.arange(n) - n // 2 for n in (height, side))
        away = torch.maximum(down.abs()[:, None], across.abs())
        rings = 1 / torch.arange(1, side // 2 + 2).square()
        pyramid = rings.flip(0).cumsum(0).flip(0)[away]
        halves.append(sign * pyramid / (pyramid.norm() + 1e-12))
    both = torch.cat(halves)
    out: Tensor = both / both.norm()
    return out


def _unit(windows: Tensor) -> Tensor:
    """Scale each channel's window to length one."""
    return windows / (windows.square().sum((2, 3), keepdim=True).sqrt() + 1e-12)


def _side(x: Tensor, share: float, *, odd: bool = False) -> int:
    """Return the side of a square that covers a share of the image; in l2 odd and at least 3."""
    h, w = x.shape[2:]
    side = max(round(math.sqrt(share * h * w)), 3 if odd else 1)
    return min(side + (odd and side % 2 == 0), h, w)


def _numbers(batch: Batch, query: int) -> Draws:
    """Return the random numbers of a query, which belong to the point."""
    return Draws.once(make_key(batch.seed, "square", query), batch.index)


def _signs(numbers: Draws, slot: int, shape: tuple[int, ...]) -> Tensor:
    return (numbers.uniform_block(slot, shape)[:, 0] - 0.5).sign()


def _corner(x: Tensor, side: int, numbers: Draws, slot: int) -> tuple[Tensor, Tensor]:
    """Draw where the window begins: any place where it fits."""
    h, w = x.shape[2:]
    top = numbers.integers(slot, h - side + 1)[:, 0]
    return top, numbers.integers(slot + 1, w - side + 1)[:, 0]


def _inside(x: Tensor, side: int, top: Tensor, left: Tensor) -> Tensor:
    """Mask the pixels of the window, shape (points, 1, height, width)."""
    h, w = (torch.arange(size, device=x.device) for size in x.shape[2:])
    rows = (h >= top[:, None]) & (h < top[:, None] + side)
    columns = (w >= left[:, None]) & (w < left[:, None] + side)
    return rows[:, None, :, None] & columns[:, None, None, :]
