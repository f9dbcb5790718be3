"""What an experiment would compute: forward and backward passes, and an estimate of the time.

Nothing is trained, attacked or downloaded. The passes are counted exactly, but for what depends on
the data and is counted at its most: the second half of MI-Combined, and the theory. The passes of
galleries, of detectors under attack, and of the checks that an attack works are left out. The time
follows from the speed of the network on this machine, measured for a second or two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mixup_inference.attacks import Precision, get_attack, run_attack
from mixup_inference.attacks.query import accelerate
from mixup_inference.datasets import Shape
from mixup_inference.defenses import DEFENSES, make_defense
from mixup_inference.errors import InputError
from mixup_inference.evaluation.detection import Points, answer
from mixup_inference.evaluation.grid_search import grid_of
from mixup_inference.experiments.adaptive_attacks import (
    adaptive_rows,
    is_mixup,
    sample_attacks,
)
from mixup_inference.experiments.models import build_network
from mixup_inference.experiments.spec import AdaptiveAttackSpec, RowSpec, Spec
from mixup_inference.models import from_pretrained
from mixup_inference.models.base import DummyClassifier
from mixup_inference.models.call import Passes, count_passes, logits_of
from mixup_inference.models.engines import make_engine
from mixup_inference.models.folding import WORTHWHILE
from mixup_inference.pool import Pool
from mixup_inference.training import OBJECTIVES, Recipe

#: How long each speed is measured.
SECONDS = 1.0


@dataclass(frozen=True)
class Work:
    """One part of an experiment: how many images go forward, and how many of them back again."""

    stage: str
    title: str
    model: str
    forward: int
    backward: int = 0


@dataclass(frozen=True)
class Speed:
    """Images a second: forward only, and forward and backward as in attacks and in training."""

    forward: float
    attack: float
    training: float

    def seconds(self, work: Work) -> float:
        """How long a piece of work takes."""
        both = self.training if work.stage == "train" else self.attack
        return (work.forward - work.backward) / self.forward + work.backward / both


def plan(spec: Spec, shape: Shape) -> list[Work]:
    """All parts of an experiment on data of this shape, in the order in which they are done."""
    work = []
    wanted = spec.data.test + spec.data.tuning + spec.data.calibration
    if wanted > (shape.test or shape.train - 1):
        raise InputError(f"the splits ask for {wanted} points, which {spec.data.name} has not.")
    train = shape.train if shape.test else shape.train - wanted
    used = spec.needed_models
    for name in used:
        if spec.is_trained(name):
            recipe = spec.recipe(name)
            passes = training_passes(recipe, train)
            title = f"{recipe.objective}, {recipe.epochs} epochs"
            work.append(Work("train", f"{name}: {title}", name, *passes))
    for name in used:
        for mode in spec.attack.modes if spec.attack else ():
            assert spec.attack is not None
            steps, look = max(spec.attack.steps), spec.attack.labels == "predicted"
            back = spec.data.used * steps
            title = f"{name}: {mode} PGD-{steps}"
            work.append(Work("attack", title, name, back + spec.data.used * look, back))
    columns = 1 + (len(spec.attack.modes) * len(spec.attack.steps) if spec.attack else 0)
    for row in spec.rows:
        passes_of_row = defense_passes(row, spec.draws, shape)
        forward = passes_of_row * spec.data.used * columns
        work.append(Work("measure", row.title, row.model, forward))
    work += [part for name in spec.figure_models for part in _figures(spec, shape, name)]
    return work + adaptive_work(spec, shape)


def _figures(spec: Spec, shape: Shape, name: str) -> list[Work]:
    """What [figures] measures of one model.

    The theory needs points that the attack turned, so it is counted at its most.
    """
    figures, attack, data = spec.figures, spec.attack, spec.data
    assert figures is not None
    assert attack is not None
    modes, kinds = len(attack.modes), 2 * len(figures.lams)
    points = min(figures.points, data.used)
    theory = modes * (2 * points + kinds * points * (2 + 1 + 4 * spec.draws))
    sets = data.used * (1 + modes) + data.calibration
    work = [
        Work("figures", f"{name}: linearity", name, figures.pairs * (2 + 9)),
        Work("figures", f"{name}: theory", name, theory),
        Work("figures", f"{name}: detection", name, sets * detection_passes(spec, shape)),
    ]
    if data.tuning and figures.defenses:
        steps = data.tuning * max(attack.steps) * modes
        looks = data.tuning * modes * (attack.labels == "predicted")
        work.append(Work("figures", f"{name}: attacks to tune on", name, steps + looks, steps))
        rows = [
            RowSpec(title=kind, model=name, defense=kind, **settings)
            for kind in figures.defenses
            for settings in grid_of(kind)
        ]
        passes = sum(defense_passes(row, spec.draws, shape) for row in rows)
        forward = passes * data.tuning * (1 + modes)
        work.append(Work("figures", f"{name}: trade-off", name, forward))
    return work


def training_passes(recipe: Recipe, images: int) -> tuple[int, int]:
    """Forward and backward passes of a training run.

    An adversarial objective makes an example of every image, and trains on both.

    >>> training_passes(Recipe(objective="at", epochs=1, batch_size=10, steps=10), 100)
    (1200, 1200)
    """
    per_epoch = min(images, recipe.steps_of_epoch(images) * recipe.batch_size)
    if not OBJECTIVES[recipe.objective].adversarial:
        return recipe.epochs * per_epoch, recipe.epochs * per_epoch
    look = recipe.attack_labels == "predicted"
    back = recipe.epochs * per_epoch * (recipe.steps + 2)
    return back + recipe.epochs * per_epoch * look, back


def _blank(shape: Shape) -> tuple[nn.Module, Tensor, Pool]:
    """A model that knows nothing, an image, and a pool."""
    image = torch.full((1, shape.channels, *shape.size), 0.5)
    pool = Pool(image.expand(shape.classes, -1, -1, -1), torch.arange(shape.classes))
    return DummyClassifier(shape.classes, slope=0), image, pool


def detection_passes(spec: Spec, shape: Shape) -> int:
    """Forward passes an image of all detection scores, counted on a model that knows nothing."""
    blank, image, pool = _blank(shape)
    assert spec.figures is not None
    sets = {"clean": Points(image, torch.zeros(1, dtype=torch.int64))}
    with count_passes(blank) as passes:
        answer(blank, pool, sets, lams=spec.figures.lams, draws=spec.draws, seed=0, batch_size=1)
    return passes.forward


def defense_passes(row: RowSpec, draws: int, shape: Shape) -> int:
    """Forward passes an image, counted on a model that knows nothing."""
    blank, image, pool = _blank(shape)
    settings = {**row.settings, **DEFENSES[row.defense].costliest, "draws": draws}
    defense = make_defense(row.defense, blank, pool, **settings)
    with torch.no_grad(), count_passes(blank) as passes:
        defense(image)
    return passes.forward


def measure_speeds(spec: Spec, shape: Shape, device: str = "cpu") -> dict[str, Speed]:
    """The speed of each model's network on this machine, at the experiment's batch size."""
    x = torch.rand(min(spec.batch_size, 64), shape.channels, *shape.size, device=device)
    precision = spec.attack.precision if spec.attack else "32-true"
    speeds: dict[str, Speed] = {}
    of_network: dict[str, Speed] = {}
    for name in spec.models:
        network, weights = spec.network_of(name), spec.models[name].weights
        key = str(network or weights)
        if key not in of_network:
            if network is None:
                assert weights is not None
                model = from_pretrained(weights)
            else:
                model = build_network(network, classes=shape.classes, channels=shape.channels)
            of_network[key] = _measure(model.to(device).eval(), x, spec.engine, precision)
        speeds[name] = of_network[key]
    return speeds


def _measure(model: nn.Module, x: Tensor, engine: str, precision: Precision) -> Speed:
    run = partial(logits_of, model) if engine == "eager" else make_engine(engine, model, x[:8])
    climbed = accelerate(model, x, images=WORTHWHILE, precision=precision)

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def attack() -> None:
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(logits_of(climbed, leaf).sum(), leaf)

    def training() -> None:
        logits_of(model, x.detach().requires_grad_()).sum().backward()

    started = time.perf_counter()
    forward()
    if time.perf_counter() - started > SECONDS:
        x = x[:8]  # a large network: its speed hardly depends on the size of the batch
    return Speed(_rate(forward, len(x)), _rate(attack, len(x)), _rate(training, len(x)))


def _rate(job: Callable[[], None], images: int) -> float:
    """Images a second, over SECONDS, after one call to warm up."""
    job()
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        job()
        calls += 1
    return calls * images / (time.perf_counter() - started)


def attack_passes(
    attack: AdaptiveAttackSpec, row: RowSpec, spec: Spec, shape: Shape, *, surrogates: int = 0
) -> Passes:
    """Forward and backward passes for each point of an attack on a row, judging left out."""
    assert spec.attack is not None
    model = DummyClassifier(shape.classes)
    image = torch.full((1, shape.channels, *shape.size), 0.5)
    pool = Pool(image.expand(shape.classes, -1, -1, -1), torch.arange(shape.classes))
    defense = make_defense(row.defense, model, pool, **row.settings, draws=spec.draws)
    brought = {"surrogates": [DummyClassifier(shape.classes) for _ in range(surrogates)]}
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


def adaptive_work(spec: Spec, shape: Shape) -> list[Work]:
    """All adaptive attacks, judging included."""
    adaptive = spec.adaptive
    if adaptive is None:
        return []
    rows = adaptive_rows(spec.rows, adaptive.rows)
    judging = {row.title: defense_passes(row, spec.draws, shape) for row in rows}
    points = min(adaptive.points, spec.data.used)
    counted: dict[str, Passes] = {}
    out = []

    def passes(row: RowSpec, attack: AdaptiveAttackSpec) -> Passes:
        others = len(spec.surrogates(attack, row.model))
        key = repr((row.defense, row.settings, attack.attack, attack.settings, others))
        if key not in counted:
            counted[key] = attack_passes(attack, row, spec, shape, surrogates=others)
        return counted[key]

    def judged(row: RowSpec) -> int:
        answer = judging.get(row.title, spec.draws + 1)
        return answer if row.defense == "none" else adaptive.repeats * answer

    def add(
        row: RowSpec, attack: AdaptiveAttackSpec, count: int, *, once: bool = False, title: str = ""
    ) -> None:
        looks = 2 if not once and get_attack(attack.attack).worst_case else 1
        forward = passes(row, attack).forward + looks * judged(row)
        backward, title = passes(row, attack).backward, f"{row.title}: {title or attack.name}"
        out.append(Work("adaptive", title, row.model, count * forward, count * backward))

    def check(row: RowSpec, count: int) -> None:
        """The attack itself, with twice the steps and draws, frozen, with eps = 1, and planted.

        With eps = 1 it may take more steps, and not every point can be given a planted example.
        """
        runs = [(5 if row.defense == "none" else 7, passes(row, adaptive.main))]
        if row.defense != "none":
            fixed = {**adaptive.main.settings, "attack": "frozen"}
            runs.append((1, passes(row, AdaptiveAttackSpec.model_validate(fixed))))
        forward = count * sum(times * (each.forward + judged(row)) for times, each in runs)
        backward = count * sum(times * each.backward for times, each in runs)
        title = f"{row.title}: checks (about)"
        out.append(Work("adaptive", title, row.model, forward, backward))

    for row in rows:
        for attack in adaptive.candidates:
            if spec.attack_applies(attack, row):
                add(row, attack, points)
    checked = min(adaptive.checks, points)
    for row in rows if checked else ():
        check(row, checked)
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
        attack = aware[0] if aware else AdaptiveAttackSpec(attack="detector-aware")
        add(row, attack, points, once=True)
    return out
