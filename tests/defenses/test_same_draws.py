"""Batches, chunks and engines change the rounding, and labels only where two classes nearly tie."""

from __future__ import annotations

import torch

from mixup_inference import CombinedInference, MixupInference, pgd

TOLERANCE = 1e-4


def test_labels_differ_at_near_ties_only(trained, pool, parts):
    x, y = parts["test"].pixels[:150], parts["test"].labels[:150]
    x = torch.cat([x, pgd(trained, x, y, eps=0.1, step=0.025)])  # where labels are close
    index = torch.arange(len(x))
    for kind, settings in (
        (MixupInference, {"sampling": "stratified", "control_variate": True}),
        (CombinedInference, {"threshold": 0.05}),
    ):
        expected = kind(trained, pool, **settings)(x, index=index)
        first, second = expected.topk(2).values.unbind(1)
        for batch, chunk, engine in ((23, 37, "eager"), (300, 4096, "folded"), (64, 7, "eager")):
            other = kind(trained, pool, chunk=chunk, engine=engine, **settings)
            pieces = zip(x.split(batch), index.split(batch), strict=True)
            found = torch.cat([other(some, index=rows) for some, rows in pieces])
            switched = found.argmax(1) != expected.argmax(1)
            assert bool((first - second)[switched].lt(2 * TOLERANCE).all())
            same = (found - expected).abs().amax(1) < TOLERANCE
            if kind is MixupInference:
                assert bool(same.all())
            else:  # an input whose gap is at the threshold may be on either side of it
                assert int((~same).sum()) <= 1
