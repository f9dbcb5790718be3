"""Algorithm 1 as slowly and as plainly as possible: the double loop over inputs and draws."""

from __future__ import annotations

import torch

MASK = (1 << 64) - 1


def absorb(state: int, word: int) -> int:
    """SplitMix64's step on Python integers."""
    z = (state + (word + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def bits(key: int, index: int, k: int, slot: int) -> int:
    return absorb(absorb(absorb(key & MASK, index & MASK), k), slot)


def mixup_inference(model, images, labels, x, index, *, rule, lam, draws, key):
    """The mean softmax of each input, one image at a time; ``rule`` is "other" or "predicted"."""
    classes = int(labels.max()) + 1
    members = [[i for i, y in enumerate(labels.tolist()) if y == c] for c in range(classes)]
    rows = []
    for image, position in zip(x, index.tolist(), strict=True):
        y_hat = int(model(image[None]).argmax())
        mean = torch.zeros(classes, dtype=x.dtype)
        for k in range(draws):
            u = (bits(key, position, k, 0) >> 11) * 2.0**-53
            allowed = [c for c in range(classes) if (c == y_hat) == (rule == "predicted")]
            y_s = allowed[int(u * len(allowed))]
            place = ((bits(key, position, k, 1) >> 33) * len(members[y_s])) >> 31
            x_s = images[members[y_s][place]]
            mean = mean + torch.softmax(model((lam * image + (1 - lam) * x_s)[None])[0], 0) / draws
        rows.append(mean)
    return torch.stack(rows)
