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
from mixup_inference.evaluation.spec import KnowingSpec, RowSpec, Spec
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
    points = min(adaptive.points, spec.data.used)
    counted: dict[str, Passes] = {}
    out = []

    def passes(row: RowSpec, attack: KnowingSpec) -> Passes:
        others = len(spec.surrogates(attack, row.model))
        key = repr((row.defense, row.settings, attack.attack, attack.settings, others))
        if key not in counted:
            counted[key] = attack_passes(attack, row, spec, shape, surrogates=others)
        return counted[key]

    def judged(row: RowSpec) -> int:
        answer = judging.get(row.title, spec.draws + 1)
        return answer if row.defense == "none" else adaptive.repeats * answer

    def add(
        row: RowSpec, attack: KnowingSpec, count: int, *, once: bool = False, title: str = ""
    ) -> None:
        looks = 1 if once or attack.attack == KNOWS_THE_SEED else 2
        forward = passes(row, attack).forward + looks * judged(row)
        work = Passes(count * forward, count * passes(row, attack).backward)
        out.append((f"{row.title}: {title or attack.name}", row.model, work))

    def checks(row: RowSpec, count: int) -> Passes:
        """The attack itself, with twice the steps and draws, frozen, with eps = 1, and planted.

        With eps = 1 it may take more steps, and not every point can be given a planted example.
        """
        runs = [(5 if row.defense == "none" else 7, passes(row, adaptive.main))]
        if row.defense != "none":
            fixed = {**adaptive.main.settings, "attack": KNOWS_THE_SEED}
            runs.append((1, passes(row, KnowingSpec.model_validate(fixed))))
        looks = sum(times for times, _ in runs) * judged(row)
        return Passes(
            count * (looks + sum(times * each.forward for times, each in runs)),
            count * sum(times * each.backward for times, each in runs),
        )

    rows = adaptive_rows(spec.rows, adaptive.rows)
    for row in rows:
        for attack in adaptive.candidates:
            if spec.attack_applies(attack, row):
                add(row, attack, points)
    checked = min(adaptive.checks, points)
    if checked:
        out += [(f"{r.title}: checks (about)", r.model, checks(r, checked)) for r in rows]
    few = min(adaptive.figure_points, points)
    assert spec.attack is not None
    for row in rows:
        for _, _, attack in sample_attacks(adaptive, spec.attack.norm) if is_mixup(row) else ():
            add(row, attack, few, once=True)
    for row in [row for row in rows if is_mixup(row)][:1] if adaptive.gallery else ():
        add(row, adaptive.main, min(adaptive.gallery, points), once=True, title="gallery")
    for model in adaptive.detectors:
        # Both ways to fool MI-Combined are counted, where a detector has one: at most so much.
        row = RowSpec(title=f"{model}, MI-PL as a detector", model=model, defense="mi-combined")
        aware = [a for a in adaptive.attacks if a.attack == "detector-aware"]
        attack = aware[0] if aware else KnowingSpec(attack="detector-aware")
        add(row, attack, points, once=True)
    return out
