"""AutoAttack's battery for randomised defences (Croce and Hein, 2020), judged by fresh draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mixup_inference.attacks.base import Batch, BatchResult, attack
from mixup_inference.attacks.external import peer_attack, prepare_peer
from mixup_inference.attacks.options import Count

#: Its name among the attacks of other libraries.
RAND = "autoattack:rand"


def _prepared(call: Any) -> Any:
    """Return what ``peer_attack`` prepares; AutoAttack averages over draws itself."""
    return prepare_peer(SimpleNamespace(**vars(call), attack=RAND, settings={}, draws=1))


@attack("AutoAttack rand", queries=lambda _: 1, prepare=_prepared, fold=False)
def autoattack_rand(batch: Batch, *, n_iter: Count = 100, eot_iter: Count = 20) -> BatchResult:
    """AutoAttack's "rand": APGD on the cross-entropy, then on DLR, with averaged gradients.

    ``peer_attack`` with "autoattack:rand" and one draw a query, by a name of its own; it needs the
    package pyautoattack. AutoAttack counts a point as broken after one wrong answer and stops
    there; here success is evaluated on fresh draws, so it may well come out lower than its own.

    Args:
        batch: the points under attack.
        n_iter: steps of each of the two.
        eot_iter: gradients that are averaged in a step.
        **options: see ``AttackOptions``.
    """
    settings = {"n_iter": n_iter, "eot_iter": eot_iter}
    found: BatchResult = peer_attack.__wrapped__(batch, attack=RAND, draws=1, settings=settings)
    return found
