"""The binarization test (Zimmermann et al., 2022): does the attack find a planted example?

An attack that finds nothing proves something only if it finds what exists. So each point gets a
binary readout of its own, a linear function of the defence's log-probabilities: no at the point and
around it, yes at an example planted within eps. An attack on the readout goes through the whole
defence, with its gradients and its randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks import AttackResult, ThreatModel, eot_pgd, pgd
from mixup_inference.attacks.options import OPTIONS, parse_options
from mixup_inference.attacks.query import Averaged, QueryModel, base_of
from mixup_inference.attacks.success import Points, check_points, judge
from mixup_inference.defenses import Defense, mean_prediction
from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import InputError
from mixup_inference.validation import check_int

ID, NAME = "binarization", "finds planted examples"

MIN_POINTS = 5  # with a planted example, and a tenth of all, for a conclusion

TRIES = 20  # random corners of the ball that the random search evaluates

INNER = 12  # points within half of eps of x, where the readout must be no

OUTER = 8  # random corners, where it must be no too; as many others may be planted

REPEATS = 5  # answers at a place that a readout is fitted to, and as many that check it

SNAPSHOTS = (2, 4, 16)  # steps of the PGD that makes the planted example: the first that will do

CLOSE = 0.75  # where the threshold lies, from the surroundings (0) to the planted example (1)

SPAN = 10.0  # the logit from the one to the other: clear, with gradients that do not vanish

CLEAR = 1.0  # by how many standard deviations of its noise an answer must be yes or no


@dataclass(frozen=True)
class Check:
    """One check of an attack.

    id: short and stable.
    name: what is checked, in words.
    passed: None if the check is inconclusive.
    detail: the numbers behind it, in one sentence.
    """

    id: str
    name: str
    passed: bool | None
    detail: str


class Readout(NamedTuple):
    """For each point a linear function of log-probabilities (..., points, classes); > 0 is yes."""

    weight: Tensor
    bias: Tensor

    def logit(self, log_probs: Tensor) -> Tensor:
        """Return the logit of yes."""
        return (log_probs * self.weight).sum(-1) + self.bias

    def rows(self, rows: Tensor) -> Readout:
        """Return the readouts of some points."""
        return Readout(self.weight[rows], self.bias[rows])


class BinarizedDefense(Defense):
    """A defence with each point's own binary readout instead of its classes; 1 is yes.

    The readout follows from a point's ``index``, so every call needs it. It is applied to the mean
    prediction over the draws, which is the defence's own answer.
    """

    def __init__(self, model: QueryModel, index: Tensor, readout: Readout) -> None:
        super().__init__(base_of(model.module))
        self.defense = model.module
        self._query = model
        self._index, order = index.sort()
        self._readout = readout.rows(order)

    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """Return the log-probabilities of no and yes, from one answer of the defence."""
        index, readout = self._of(index)
        return _no_yes(readout.logit(_answer(self._query, x, index, stream)))

    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """Return one answer made of so many draws, shape (batch, 1, 2)."""
        index, readout = self._of(index)
        log_probs = mean_prediction(self._query.log_probs(x, index, draws, stream))
        return _no_yes(readout.logit(log_probs))[:, None]

    def _of(self, index: Tensor | None) -> tuple[Tensor, Readout]:
        if index is None:
            raise InputError("each point has a readout of its own; give its index.")
        return index, self._readout.rows(torch.searchsorted(self._index, index))


def binarization_test(
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
    """Test whether the attack finds planted examples, with the settings that it is used with.

    It passes if the attack finds nine of ten, in most of the fresh answers; one may always be
    missed. Points where no example stands out from the defence's noise are left out. The test is
    inconclusive if too few points remain, or if random search already finds half of the examples.

    Args:
        defense: a defence, or any classifier.
        x: clean images in [0, 1]; some twenty are enough.
        y: their labels.
        attack: called as ``attack(module, x, y, steps=, draws=, loss=, **options)``.
        steps: of the attack.
        draws: of the attack.
        loss: of the attack.
        **options: see ``AttackOptions``.
    """
    parsed = parse_options({name: options[name] for name in options.keys() & OPTIONS.keys()})
    points = check_points(x, y, parsed.index)
    if len(points.index.unique()) < len(x):
        raise InputError("index names a point twice; a planted example belongs to one point.")
    model = QueryModel(defense, points.x, seed=parsed.seed)
    draws = check_int(draws, what="draws", least=1) if model.is_random else 1
    threat_model = parsed.threat_model
    readout, valid = fit_readouts(model, points, threat_model, draws=draws)
    count, least = int(valid.sum()), max(MIN_POINTS, -(-len(x) // 10))
    if count < least:
        words = f"only {count} of {len(x)} points could be given a planted example"
        return Check(ID, NAME, None, f"{words}, and at least {least} are needed.")

    x, no, index = points.x[valid], torch.zeros_like(points.y[valid]), points.index[valid]
    module = BinarizedDefense(model, index, readout.rows(valid))
    options["index"] = index
    if options.pop("targets", None) is not None:
        options["targeted"] = True
    attacked = attack(module, x, no, steps=steps, draws=draws, loss=loss, **options)
    corners = _corners(threat_model, x, index, parsed.seed, "try", TRIES)
    guess = _random_search(module, corners, index, draws)
    found = _majority(attacked.fooled)
    by_chance = _majority(judge(module, guess, no, repeats=parsed.repeats, index=index))
    return _verdict(found, by_chance, count, len(valid))


def _verdict(found: int, by_chance: int, count: int, points: int) -> Check:
    wanted = count - max(1, count // 10)
    aside = f" ({points - count} of {points} points could not be given one)"
    detail = (
        f"it finds {found} of {count} planted examples (wanted: {wanted}), random search "
        f"{by_chance}{aside if count < points else ''}"
    )
    if found >= wanted and by_chance >= count / 2:
        return Check(ID, NAME, None, f"{detail}, so finding them proves little.")
    return Check(ID, NAME, found >= wanted, f"{detail}.")


@torch.no_grad()
def fit_readouts(
    model: QueryModel, points: Points, threat_model: ThreatModel, *, draws: int
) -> tuple[Readout, Tensor]:
    """Fit for each point a readout that is yes at a planted example; return whether it holds."""
    x, index, seed = points.x, points.index, model.seed
    half = ThreatModel(threat_model.norm, threat_model.eps / 2)
    inner = [half.start(x, index, make_key(seed, "inner", n)) for n in range(INNER)]
    outer = _corners(threat_model, x, index, seed, "outer", OUTER)
    repeats = REPEATS if model.is_random else 1
    around = _answers(model, [*inner, *outer, *repeats * [x]], index, "fit")
    fresh_inner = _answers(model, inner[:REPEATS], index, "check inner")
    fresh_x = _answers(model, repeats * [x], index, "check x")
    readout = Readout(torch.zeros_like(around[0]), torch.zeros_like(around[0, :, 0]))
    valid = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for example in _planted(model, points, threat_model, around, draws):
        new = _fit(around, _answers(model, repeats * [example], index, "fit planted"))
        fresh = _answers(model, repeats * [example], index, "check planted")
        good = _holds(new.logit(fresh), new.logit(fresh_x), new.logit(fresh_inner)) & ~valid
        readout = Readout(
            torch.where(good[:, None], new.weight, readout.weight),
            torch.where(good, new.bias, readout.bias),
        )
        valid |= good
        if bool(valid.all()):
            break
    return Readout(readout.weight.to(x.dtype), readout.bias.to(x.dtype)), valid


def _planted(
    model: QueryModel, points: Points, threat_model: ThreatModel, around: Tensor, draws: int
) -> Iterator[Tensor]:
    """Yield candidates for planted examples: PGD on the base model, then a random corner.

    Few steps come first, which leaves a working attack room to find something as good; many are
    for defences whose noise drowns the others. Corners need no gradients: the farthest is taken.
    """
    x, index, seed = points.x, points.index, model.seed
    base = Averaged(base_of(model.module), x, draws=draws, seed=seed)
    yield from pgd(
        base,
        x,
        points.y,
        eps=threat_model.eps,
        step=threat_model.eps / 2,
        steps=SNAPSHOTS[-1],
        norm=threat_model.norm,
        targeted=True,
        random_start=False,
        seed=seed,
        index=index,
        snapshots=SNAPSHOTS,
    ).values()
    corners = _corners(threat_model, x, index, seed, "plant", OUTER)
    off = _answers(model, corners, index, "corner") - around.mean(0)
    yield _pick(corners, (off * _solve(_within(around), off)).sum(-1))


def _fit(around: Tensor, there: Tensor) -> Readout:
    """Fit Fisher's discriminant from the surroundings to the planted example."""
    weight = _solve(_within(around, there), there.mean(0) - around.mean(0))
    low, high = (around * weight).sum(-1), (there * weight).sum(-1)
    threshold = torch.lerp(low.amax(0), high.amin(0), CLOSE)
    scale = SPAN / (high.mean(0) - low.mean(0)).clamp(min=1e-12)
    return Readout(weight * scale[:, None], -threshold * scale)


def _within(*groups: Tensor) -> Tensor:
    """Return each point's covariance within groups, shrunk: there are few answers per class."""
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
    """Whether fresh answers are clearly yes there, and clearly no at x and around it."""
    noise = (there.var(0, correction=0) + at_x.var(0, correction=0)) / 2
    margin = CLEAR * noise.sqrt()
    return (there.mean(0) > margin) & (at_x.mean(0) < -margin) & (inner.mean(0) < -margin)


@torch.no_grad()
def _random_search(
    module: BinarizedDefense, corners: list[Tensor], index: Tensor, draws: int
) -> Tensor:
    """Return the best of some random corners, as an attack without gradients would send."""
    yes = [
        module.draw(image, draws, index=index, stream=f"try {n}")[:, 0, 1]
        for n, image in enumerate(corners)
    ]
    return _pick(corners, torch.stack(yes))


def _pick(images: list[Tensor], score: Tensor) -> Tensor:
    """Pick for each point the image with the highest score, (images, points)."""
    return torch.stack(images)[score.argmax(0), torch.arange(score.shape[1], device=score.device)]


def _corners(
    threat_model: ThreatModel, x: Tensor, index: Tensor, seed: int, name: str, count: int
) -> list[Tensor]:
    """Draw random corners of the linf ball, or random points on the l2 ball."""
    corners = []
    for n in range(count):
        draws = Draws.once(make_key(seed, name, n), index)
        noise = draws.normal(0, tuple(x.shape[1:]))[:, 0].to(x.dtype)
        corners.append(threat_model.project(x, threat_model.step(x, noise, threat_model.eps)))
    return corners


def _answers(model: QueryModel, places: Sequence[Tensor], index: Tensor, name: str) -> Tensor:
    """Return one answer at each place, each with its own draws: (places, points, classes)."""
    return torch.stack(
        [_answer(model, place, index, f"{name} {n}").double() for n, place in enumerate(places)]
    )


def _answer(model: QueryModel, x: Tensor, index: Tensor, stream: str | int) -> Tensor:
    """Return the log-probabilities of one whole answer, as ``judge`` asks for it."""
    if model.kind == "ours":
        out: Tensor = model.module(x, index=index, stream=stream)
        return out
    return model.log_probs(x, index, 1, stream)[:, 0]


def _majority(fooled: Tensor) -> int:
    return int((fooled.double().mean(1) > 0.5).sum())


def _no_yes(logit: Tensor) -> Tensor:
    return functional.logsigmoid(torch.stack([-logit, logit], dim=-1))
