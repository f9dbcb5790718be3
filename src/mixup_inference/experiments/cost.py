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
from itertools import product

import torch
from torch import Tensor, nn

from mixup_inference.attacks import Precision, get_attack, run_attack
from mixup_inference.attacks.query import accelerate
from mixup_inference.datasets import LabelledImages, Shape
from mixup_inference.defenses import DEFENSES, make_defense
from mixup_inference.errors import InputError
from mixup_inference.evaluation.detection import answer
from mixup_inference.evaluation.grid_search import grid_of
from mixup_inference.experiments.adaptive_attacks import adaptive_rows, is_mixup, sample_attacks
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
    data, attack = spec.data, spec.attack
    wanted = data.test + data.tuning + data.calibration
    if wanted > (shape.test or shape.train - 1):
        raise InputError(f"the splits ask for {wanted} points, which {data.name} has not.")
    train = shape.train if shape.test else shape.train - wanted
    work = []
    for name in filter(spec.is_trained, spec.needed_models):
        recipe = spec.recipe(name)
        title = f"{name}: {recipe.objective}, {recipe.epochs} epochs"
        work.append(Work("train", title, name, *training_passes(recipe, train)))
    for name, mode in product(spec.needed_models, attack.modes if attack else ()):
        title = f"{name}: {mode} PGD-{spec.columns[-1].steps}"
        work.append(Work("attack", title, name, *_oblivious_passes(spec, data.used)))
    for row in spec.rows:
        forward = defense_passes(row, spec.draws, shape) * data.used * len(spec.columns)
        work.append(Work("measure", row.title, row.model, forward))
    work += [part for name in spec.figure_models for part in _figures(spec, shape, name)]
    return work + adaptive_work(spec, shape)


def _oblivious_passes(spec: Spec, points: int) -> tuple[int, int]:
    """Forward and backward passes of PGD in one mode; predicted labels take one more look."""
    assert spec.attack is not None
    back = points * max(spec.attack.steps)
    return back + points * (spec.attack.labels == "predicted"), back


def _figures(spec: Spec, shape: Shape, name: str) -> list[Work]:
    """What [figures] measures of one model.

    The theory needs points that the attack turned, so it is counted at its most.
    """
    figures, attack, data = spec.figures, spec.attack, spec.data
    assert figures is not None
    assert attack is not None
    modes, kinds = len(attack.modes), 2 * len(figures.lams)
    points = min(figures.points, data.used)
    sets = data.used * (1 + modes) + data.calibration
    parts = {
        "linearity": (figures.pairs * (2 + 9), 0),
        "theory": (modes * (2 * points + kinds * points * (2 + 1 + 4 * spec.draws)), 0),
        "detection": (sets * detection_passes(spec, shape), 0),
    }
    if data.tuning and figures.defenses:
        passes = sum(
            defense_passes(RowSpec(title=kind, model=name, defense=kind, **own), spec.draws, shape)
            for kind in figures.defenses
            for own in grid_of(kind)
        )
        parts["attacks to tune on"] = _oblivious_passes(spec, data.tuning * modes)
        parts["trade-off"] = (passes * data.tuning * (1 + modes), 0)
    return [Work("figures", f"{name}: {what}", name, *passes) for what, passes in parts.items()]


def training_passes(recipe: Recipe, images: int) -> tuple[int, int]:
    """Forward and backward passes of a training run.

    Those of the check for catastrophic overfitting are left out.

    >>> training_passes(Recipe(objective="at", epochs=1, batch_size=10, steps=10), 100)
    (1200, 1200)
    """
    seen = recipe.epochs * min(images, recipe.steps_of_epoch(images) * recipe.batch_size)
    forward, backward = OBJECTIVES[recipe.objective].passes(recipe)
    return seen * forward, seen * backward


def _blank(shape: Shape) -> tuple[nn.Module, Tensor, Pool]:
    """A model that knows nothing, an image, and a pool."""
    image = torch.full((1, shape.channels, *shape.size), 0.5)
    pool = Pool(image.expand(shape.classes, -1, -1, -1), torch.arange(shape.classes))
    return DummyClassifier(shape.classes, slope=0), image, pool


def detection_passes(spec: Spec, shape: Shape) -> int:
    """Forward passes an image of all detection scores, counted on a model that knows nothing."""
    blank, image, pool = _blank(shape)
    assert spec.figures is not None
    zero = torch.zeros(1, dtype=torch.int64)
    sets = {"clean": LabelledImages(image, zero, zero, ())}
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
    measured: dict[str, Speed] = {}

    def speed(name: str) -> Speed:
        network, weights = spec.network_of(name), spec.models[name].weights
        key = str(network or weights)
        if key not in measured:
            if network is None:
                assert weights is not None
                model = from_pretrained(weights)
            else:
                model = build_network(network, classes=shape.classes, channels=shape.channels)
            measured[key] = _measure(model.to(device).eval(), x, spec.engine, precision)
        return measured[key]

    return {name: speed(name) for name in spec.models}


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
    """Images a second, over SECONDS, after a few calls to warm up."""
    from torch.utils.benchmark import Timer  # noqa: PLC0415 (slow to import)

    timer = Timer("job()", globals={"job": job}, num_threads=torch.get_num_threads())
    return images / timer.blocked_autorange(min_run_time=SECONDS).mean


def attack_passes(spec: Spec, shape: Shape, row: RowSpec, attack: AdaptiveAttackSpec) -> Passes:
    """Forward and backward passes for each point of an attack on a row, judging left out."""
    assert spec.attack is not None
    _, image, pool = _blank(shape)
    model = DummyClassifier(shape.classes)
    defense = make_defense(row.defense, model, pool, **row.settings, draws=spec.draws)
    others = [DummyClassifier(shape.classes) for _ in spec.surrogates(attack, row.model)]
    found = run_attack(
        attack.attack,
        defense,
        image,
        torch.zeros(1, dtype=torch.int64),
        settings=attack.settings,
        **({"surrogates": others} if others else {}),
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
    assert spec.attack is not None
    rows, main = adaptive_rows(spec.rows, adaptive.rows), adaptive.main
    answers = {row.title: defense_passes(row, spec.draws, shape) for row in rows}
    counted: dict[str, Passes] = {}
    work = []

    def passes(row: RowSpec, attack: AdaptiveAttackSpec) -> Passes:
        others = len(spec.surrogates(attack, row.model))
        key = repr((row.defense, row.settings, attack.attack, attack.settings, others))
        if key not in counted:
            counted[key] = attack_passes(spec, shape, row, attack)
        return counted[key]

    def add(
        row: RowSpec, title: str, points: int, attacks: list[AdaptiveAttackSpec], looks: int = 1
    ) -> None:
        """Some attacks on so many points of a row, each of them judged so often."""
        answer = answers.get(row.title, spec.draws + 1)
        judging = looks * answer * (1 if row.defense == "none" else adaptive.repeats)
        each = [passes(row, attack) for attack in attacks]
        forward = points * sum(one.forward + judging for one in each)
        backward = points * sum(one.backward for one in each)
        work.append(Work("adaptive", f"{row.title}: {title}", row.model, forward, backward))

    points = min(adaptive.points, spec.data.used)
    for row, attack in product(rows, adaptive.candidates):
        if spec.attack_applies(attack, row):
            looks = 2 if get_attack(attack.attack).worst_case else 1
            add(row, attack.name, points, [attack], looks)
    for row in rows if adaptive.checks else ():
        # The attack itself, with twice the steps and draws, frozen, with eps = 1, and planted. With
        # eps = 1 it may take more steps, and not every point can be given a planted example.
        frozen = AdaptiveAttackSpec(attack="frozen", **main.settings)
        runs = 5 * [main] if row.defense == "none" else [*7 * [main], frozen]
        add(row, "checks (about)", min(adaptive.checks, points), runs)
    mixup = [row for row in rows if is_mixup(row)]
    for row, (_, _, attack) in product(mixup, sample_attacks(adaptive, spec.attack.norm)):
        add(row, attack.name, min(adaptive.figure_points, points), [attack])
    for row in mixup[:1] if adaptive.gallery else ():
        add(row, "gallery", min(adaptive.gallery, points), [main])
    for model, score in product(adaptive.detectors, adaptive.detector_scores):
        # Both ways to fool MI-Combined are counted, where a detector has one: at most so much.
        row = RowSpec(title=f"{model}, {score} as a detector", model=model, defense="mi-combined")
        attack = adaptive.first("detector-aware")
        add(row, attack.name, points, [attack])
    return work
