"""What attacks that know the defence would cost: counted on one image, with a tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mixup_inference.attacks import run_attack
from mixup_inference.attacks.registry import Sketch
from mixup_inference.classifier import Passes
from mixup_inference.datasets import Shape
from mixup_inference.defenses import make_defense
from mixup_inference.evaluation.adaptive.bench import (
    KNOWS_THE_SEED,
    adaptive_rows,
    is_mixup,
    sample_attacks,
)
from mixup_inference.evaluation.spec import RowSpec, Spec
from mixup_inference.evaluation.spec_adaptive import KnowingSpec
from mixup_inference.pool import Pool


def attack_passes(
    attack: KnowingSpec, row: RowSpec, spec: Spec, shape: Shape, *, surrogates: int = 0
) -> Passes:
    """Forward and backward passes for each point of an attack on a row, judging left out."""
    assert spec.attack is not None
    model = Sketch(shape.classes)
    image = torch.full((1, shape.channels, *shape.size), 0.5)
    pool = Pool(image.expand(shape.classes, -1, -1, -1), torch.arange(shape.classes))
    options: dict[str, Any] = {} if row.defense == "none" else {"draws": spec.draws}
    defense = make_defense(row.defense, model, pool, **row.settings, **options)
    brought = {"surrogates": [Sketch(shape.classes) for _ in range(surrogates)]}
    found = run_attack(
        attack.attack,
        defense,
        image,
        torch.zeros(1, dtype=torch.int64),
        settings=attack.settings,
        **(brought if surrogates else {}),
        eps=spec.attack.eps,
        norm=spec.attack.norm,
        repeats=1,
        batch_size=spec.batch_size,
    )
    return Passes(found.forward, found.backward)


def adaptive_work(
    spec: Spec, shape: Shape, judging: Mapping[str, int]
) -> list[tuple[str, str, Passes]]:
    """All attacks: a title, the model, and the passes, judging included.

    ``judging``: for each row's title the forward passes of one answer.
    """
    adaptive = spec.adaptive
    if adaptive is None:
        return []
    points = min(adaptive.points, spec.data.test)
    counted: dict[str, Passes] = {}
    out = []

    def add(row: RowSpec, attack: KnowingSpec, count: int, *, figure: bool = False) -> None:
        others = len(spec.surrogates(attack, row.model))
        key = repr((row.defense, row.settings, attack.attack, attack.settings, others))
        if key not in counted:
            counted[key] = attack_passes(attack, row, spec, shape, surrogates=others)
        answers = 1 if row.defense == "none" else adaptive.repeats
        candidate = not figure and attack.attack != KNOWS_THE_SEED
        looks = 2 * answers if candidate else answers
        forward = counted[key].forward + looks * judging[row.title]
        work = Passes(count * forward, count * counted[key].backward)
        out.append((f"{row.title}: {attack.name}", row.model, work))

    rows = adaptive_rows(spec.rows, adaptive.rows)
    for row in rows:
        for attack in adaptive.candidates:
            if spec.attack_applies(attack, row):
                add(row, attack, points)
    few = min(adaptive.figure_points, points)
    assert spec.attack is not None
    for row in rows:
        for _, _, attack in sample_attacks(adaptive, spec.attack.norm) if is_mixup(row) else ():
            add(row, attack, few, figure=True)
    return out
