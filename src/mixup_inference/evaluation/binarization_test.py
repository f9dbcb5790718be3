"""The binarisation test: plant an example that changes the answer, see whether the attack finds it.

An attack that finds nothing proves something only if it finds what is there. So each point gets a
question of its own, "does the defence answer here as it does at the planted example?", to which
the point and its surroundings say no, and the planted example, within eps, says yes. It is a
linear reading of the defence's log-probabilities, so an attack on it goes through the whole
defence, with its gradients and its randomness. After Zimmermann et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks import (
    AttackResult,
    Averaged,
    QueryModel,
    ThreatModel,
    base_of,
    eot_pgd,
    judge,
    pgd,
)
from mixup_inference.defenses import Defense, mean_prediction
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.validation import check_images, check_index, check_int, check_labels

NAME = "finds planted examples"

FEWEST = 5  # points with a planted example, and a tenth of all, to decide anything

TRIES = 20  # random corners of the ball that the random search looks at

INNER = 12  # points within half of eps of x, which must say no

OUTER = 8  # random corners, which must say no too; as many others may be planted

LOOKS = 5  # answers at a place that a question is fitted to, and as many that check it

SNAPSHOTS = (2, 4, 16)  # steps of the PGD that makes the planted example: the first that will do

CLOSE = 0.75  # where the threshold lies, from the surroundings (0) to the planted example (1)

SPAN = 10.0  # the logit from the one to the other: clear, with gradients that do not vanish

CLEAR = 1.0  # by how many standard deviations of its noise an answer must be yes or no


@dataclass(frozen=True)
class Check:
    """One check of an attack: passed, failed or (None) not decided; why, in one sentence."""

    name: str
    passed: bool | None
    detail: str


class Question(NamedTuple):
    """For each point a linear reading of log-probabilities (..., points, classes); > 0 is yes."""

    weight: Tensor
    bias: Tensor

    def read(self, log_probs: Tensor) -> Tensor:
        """The logit of yes."""
        return (log_probs * self.weight).sum(-1) + self.bias

    def rows(self, rows: Tensor) -> Question:
        """The questions of some points."""
        return Question(self.weight[rows], self.bias[rows])


class Binarised(Defense):
    """A defence that answers each point's own question instead of naming a class; 1 is yes.

    Which question is asked follows from a point's ``index``, so every call needs it. An answer is
    read from the mean prediction over the draws, as the defence's own is.
    """

    def __init__(self, victim: QueryModel, index: Tensor, question: Question) -> None:
        super().__init__(base_of(victim.module))
        self.defense = victim.module
        self._victim = victim
        self._index, order = index.sort()
        self._question = question.rows(order)

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log-probabilities of no and yes, from one answer of the defence."""
        index, question = self._ask(index)
        return _no_yes(question.read(_answer(self._victim, x, index, stream)))

    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """One answer made of so many draws, shape (batch, 1, 2)."""
        index, question = self._ask(index)
        log_probs = mean_prediction(self._victim.log_probs(x, index, draws, stream))
        return _no_yes(question.read(log_probs))[:, None]

    def _ask(self, index: Tensor | None) -> tuple[Tensor, Question]:
        if index is None:
            raise InputError("each point has a question of its own; give its index.")
        return index, self._question.rows(torch.searchsorted(self._index, index))


def planted_test(
    defense: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    attack: Callable[..., AttackResult] = eot_pgd,
    steps: int = 50,
    draws: int = 10,
    loss: str = "ce",
    **options: Any,
) -> Check:
    """Whether the attack finds planted examples, with the settings that it is used with.

    It passes if the attack finds nine of ten, in most of fresh answers; one may always be missed.
    Points where no example stands out from the defence's noise are left out; with too few left
    nothing is decided, nor if a random search finds half of what the attack is to find.

    Args:
        defense: a defence, or any classifier.
        x: clean images in [0, 1]; some twenty are enough.
        y: their labels.
        attack: called as ``attack(module, x, y, steps=, draws=, loss=, **options)``.
        steps: of the attack.
        draws: of the attack.
        loss: of the attack.
        **options: see ``Common``.
    """
    check_images(x)
    x, y = x.detach(), check_labels(y, count=len(x)).to(x.device)
    seed = check_int(options.get("seed", 0), what="seed", least=0)
    index = options.get("index")
    index = torch.arange(len(x)) if index is None else index
    index = check_index(index, count=len(x), device=x.device)
    if len(index.unique()) < len(index):
        raise InputError("index names a point twice; a planted example belongs to one point.")
    ball = ThreatModel(options.get("norm", "linf"), options.get("eps", 8 / 255))
    victim = QueryModel(defense, x, seed=seed)
    draws = check_int(draws, what="draws", least=1) if victim.is_random else 1
    question, valid = plant(victim, x, y, index, ball, draws=draws, seed=seed)
    count, least = int(valid.sum()), max(FEWEST, -(-len(x) // 10))
    if count < least:
        words = f"only {count} of {len(x)} points could be given a planted example"
        return Check(NAME, None, f"{words}, and at least {least} are needed.")

    x, no, index = x[valid], torch.zeros_like(y[valid]), index[valid]
    module = Binarised(victim, index, question.rows(valid))
    options["index"] = index
    if options.pop("targets", None) is not None:
        options["targeted"] = True
    attacked = attack(module, x, no, steps=steps, draws=draws, loss=loss, **options)
    guess = _random_search(module, x, index, ball, draws, seed)
    repeats = options.get("repeats", 5)
    found = _majority(attacked.fooled)
    by_chance = _majority(judge(module, guess, no, repeats=repeats, index=index))
    return _verdict(found, by_chance, count, len(valid))


def _verdict(found: int, by_chance: int, count: int, points: int) -> Check:
    wanted = count - max(1, count // 10)
    aside = f" ({points - count} of {points} points could not be given one)"
    detail = (
        f"it finds {found} of {count} planted examples (wanted: {wanted}), random search "
        f"{by_chance}{aside if count < points else ''}"
    )
    if found >= wanted and by_chance >= count / 2:
        return Check(NAME, None, f"{detail}, so finding them proves little.")
    return Check(NAME, found >= wanted, f"{detail}.")


@torch.no_grad()
def plant(
    victim: QueryModel,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    ball: ThreatModel,
    *,
    draws: int,
    seed: int,
) -> tuple[Question, Tensor]:
    """For each point a question to which a planted example says yes, and whether it holds."""
    half = ThreatModel(ball.norm, ball.eps / 2)
    inner = [half.start(x, index, make_key(seed, "inner", n)) for n in range(INNER)]
    outer = [_corner(ball, x, index, make_key(seed, "outer", n)) for n in range(OUTER)]
    looks = LOOKS if victim.is_random else 1
    around = _answers(victim, [*inner, *outer, *looks * [x]], index, "fit")
    fresh_inner = _answers(victim, inner[:LOOKS], index, "check inner")
    fresh_x = _answers(victim, looks * [x], index, "check x")
    question = Question(torch.zeros_like(around[0]), torch.zeros_like(around[0, :, 0]))
    valid = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for example in _plants(victim, x, y, index, ball, around, draws, seed):
        new = _fit(around, _answers(victim, looks * [example], index, "fit planted"))
        fresh = _answers(victim, looks * [example], index, "check planted")
        good = _holds(new.read(fresh), new.read(fresh_x), new.read(fresh_inner)) & ~valid
        question = Question(
            torch.where(good[:, None], new.weight, question.weight),
            torch.where(good, new.bias, question.bias),
        )
        valid |= good
        if bool(valid.all()):
            break
    return Question(question.weight.to(x.dtype), question.bias.to(x.dtype)), valid


def _plants(
    victim: QueryModel,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    ball: ThreatModel,
    around: Tensor,
    draws: int,
    seed: int,
) -> Iterator[Tensor]:
    """What may be planted, the modest first: by PGD on the base model, then a random corner.

    The modest leave a working attack room to find something as good; the extreme are for defences
    in whose noise the modest drown. Corners need no gradients: the one farthest out is taken.
    """
    base = Averaged(base_of(victim.module), x, draws=draws, seed=seed)
    yield from pgd(
        base,
        x,
        y,
        eps=ball.eps,
        step=ball.eps / 2,
        steps=SNAPSHOTS[-1],
        norm=ball.norm,
        targeted=True,
        random_start=False,
        seed=seed,
        index=index,
        snapshots=SNAPSHOTS,
    ).values()
    corners = [_corner(ball, x, index, make_key(seed, "plant", n)) for n in range(OUTER)]
    off = _answers(victim, corners, index, "corner") - around.mean(0)
    yield _pick(corners, (off * _solve(_within(around), off)).sum(-1))


def _fit(around: Tensor, there: Tensor) -> Question:
    """Fisher's discriminant from the surroundings to the planted example, in log-probabilities."""
    weight = _solve(_within(around, there), there.mean(0) - around.mean(0))
    low, high = (around * weight).sum(-1), (there * weight).sum(-1)
    threshold = torch.lerp(low.amax(0), high.amin(0), CLOSE)
    scale = SPAN / (high.mean(0) - low.mean(0)).clamp(min=1e-12)
    return Question(weight * scale[:, None], -threshold * scale)


def _within(*groups: Tensor) -> Tensor:
    """For each point the covariance within groups, shrunk: there are few answers per class."""
    off = torch.cat([group - group.mean(0) for group in groups])
    count, classes = off.shape[0], off.shape[-1]
    scatter = torch.einsum("kni,knj->nij", off, off) / (count - len(groups))
    mean = scatter.diagonal(dim1=1, dim2=2).mean(1) + 1e-9
    even = mean[:, None, None] * torch.eye(classes, dtype=off.dtype, device=off.device)
    return torch.lerp(scatter, even, classes / (classes + count))


def _solve(matrix: Tensor, vectors: Tensor) -> Tensor:
    out: Tensor = torch.linalg.solve(matrix, vectors[..., None])
    return out.squeeze(-1)


def _holds(there: Tensor, at_x: Tensor, inner: Tensor) -> Tensor:
    """Whether fresh answers are as planned: clearly yes there, clearly no at x and around it."""
    noise = (there.var(0, correction=0) + at_x.var(0, correction=0)) / 2
    margin = CLEAR * noise.sqrt()
    return (there.mean(0) > margin) & (at_x.mean(0) < -margin) & (inner.mean(0) < -margin)


@torch.no_grad()
def _random_search(
    module: Binarised, x: Tensor, index: Tensor, ball: ThreatModel, draws: int, seed: int
) -> Tensor:
    """The most promising of some random corners, as an attack without gradients would send."""
    corners = [_corner(ball, x, index, make_key(seed, "try", n)) for n in range(TRIES)]
    yes = [
        module.draw(image, draws, index=index, stream=f"try {n}")[:, 0, 1]
        for n, image in enumerate(corners)
    ]
    return _pick(corners, torch.stack(yes))


def _pick(images: list[Tensor], score: Tensor) -> Tensor:
    """For each point the image with the highest score, (images, points)."""
    return torch.stack(images)[score.argmax(0), torch.arange(score.shape[1], device=score.device)]


def _corner(ball: ThreatModel, x: Tensor, index: Tensor, key: int) -> Tensor:
    """A random corner of the linf ball, or a random point on the l2 ball."""
    noise = Draws.once(key, index).normal(0, tuple(x.shape[1:]))[:, 0].to(x.dtype)
    return ball.project(x, ball.step(x, noise, ball.eps))


def _answers(victim: QueryModel, places: Sequence[Tensor], index: Tensor, name: str) -> Tensor:
    """One answer at each place, each with draws of its own: (places, points, classes)."""
    return torch.stack(
        [_answer(victim, place, index, f"{name} {n}").double() for n, place in enumerate(places)]
    )


def _answer(victim: QueryModel, x: Tensor, index: Tensor, stream: str | int) -> Tensor:
    """The log-probabilities of one whole answer, as ``judge`` asks for it."""
    if victim.kind == "ours":
        out: Tensor = victim.module(x, index=index, stream=stream)
        return out
    return victim.log_probs(x, index, 1, stream)[:, 0]


def _majority(fooled: Tensor) -> int:
    return int((fooled.double().mean(1) > 0.5).sum())


def _no_yes(logit: Tensor) -> Tensor:
    return functional.logsigmoid(torch.stack([-logit, logit], dim=-1))
