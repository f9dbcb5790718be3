"""The runner of all attacks: it batches, counts passes, and evaluates success on fresh draws.

An attack is a function ``(batch, *, settings) -> BatchResult`` under the decorator ``attack``,
which turns it into the public ``(defense, x, y, *, settings, **options) -> AttackResult``. The
options that every attack takes are the fields of ``AttackOptions``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixup_inference.attacks.losses import get_loss
from mixup_inference.attacks.options import AttackOptions, check_types, parse_options, settings_of
from mixup_inference.attacks.query import QueryModel, accelerate, base_of
from mixup_inference.attacks.success import Points, check_points, judge
from mixup_inference.attacks.threat_model import (
    ThreatModel,
    gradient_of,
    length,
    per_sample,
    random_targets,
    step_sizes,
)
from mixup_inference.defenses import Defense, within_memory
from mixup_inference.detection import Detector
from mixup_inference.draws import make_key
from mixup_inference.errors import InputError, MixupInferenceWarning
from mixup_inference.models.call import Passes, batch_for, count_passes
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_labels, check_number

#: What the docstring of a public attack has instead of its batch.
_BATCH = "batch: the points under attack."
_POINTS = """defense: a defence, or any classifier.
        x: clean images in [0, 1].
        y: the true labels."""

_SLACK = 1e-5  # rounding that may take an attack of others outside of its ball


@dataclass(frozen=True)
class AttackResult:
    """The last example of the attack for every point, whether or not it fools the defence.

    examples: within eps of x and within [0, 1].
    loss: of each example, as the attack estimates it over its own draws.
    fooled: (points, repeats), whether each fresh answer of the defence is wrong.
    linf, l2: the size of each perturbation.
    forward, backward: images through F and back again, without those that evaluate success. Where
        a defence's chunk is too small for the draws, recomputation in the backward pass counts too.
    trace: the mean loss over all points at each iterate, the first being the start.
    """

    examples: Tensor
    loss: Tensor
    fooled: Tensor
    linf: Tensor
    l2: Tensor
    forward: int
    backward: int
    trace: Tensor

    @property
    def success(self) -> Tensor:
        """For each point the share of fresh answers that are wrong."""
        return self.fooled.double().mean(1)


class BatchResult(NamedTuple):
    """The result of an attack on one batch; the trace has shape (iterates, points)."""

    examples: Tensor
    loss: Tensor
    trace: Tensor

    def better(self, other: BatchResult | None) -> BatchResult:
        """Keep for each point the result with the higher loss; of equals, the other's."""
        if other is None:
            return self
        wins = self.loss > other.loss
        return BatchResult(
            torch.where(per_sample(wins), self.examples, other.examples),
            torch.where(wins, self.loss, other.loss),
            torch.where(wins, self.trace, other.trace),
        )


@dataclass(frozen=True)
class Batch:
    """Some points under attack.

    rows: their positions among all points of the call.
    prepared: what the attack's ``prepare`` returned, once for all batches.
    tick: to be called after every query or gradient.
    """

    model: QueryModel
    x: Tensor
    y: Tensor
    target: Tensor | None
    index: Tensor
    rows: Tensor
    threat_model: ThreatModel
    seed: int
    prepared: Any
    tick: Callable[[], None]

    def start(self, restart: int = 0) -> Tensor:
        """Draw a random point of the ball; all attacks share the first one."""
        name = ("pgd start",) if restart == 0 else ("pgd start", restart)
        return self.threat_model.start(self.x, self.index, make_key(self.seed, *name))

    def step_sizes(self, step: float | None, steps: int, schedule: str = "constant") -> list[float]:
        """Return the sizes of all steps; a quarter of eps if ``step`` is None."""
        size = self.threat_model.eps / 4 if step is None else step
        return step_sizes(check_number(size, what="step", least=0), steps, schedule)

    def loss(self, image: Tensor, loss: str, draws: int | None, *stream: str | int) -> Tensor:
        """Return the loss of each point over the draws of a stream."""
        log_p = self.model.log_probs(image, self.index, draws, *stream)
        for labels, what in ((self.y, "y"), (self.target, "targets")):
            if labels is not None:
                check_labels(labels, count=len(image), classes=log_p.shape[2], what=what)
        return get_loss(loss)(log_p, self.y, self.target)

    def loss_and_gradient(
        self, image: Tensor, loss: str, draws: int | None, *stream: str | int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each point, and its gradient."""
        leaf = image.detach().requires_grad_()

        def compute() -> tuple[Tensor, Tensor]:
            values = self.loss(leaf, loss, draws, *stream)
            return values.detach(), gradient_of(values.sum(), leaf)

        with torch.enable_grad():
            found = within_memory(self.model.module, image, compute)
        self.tick()
        return found

    def accept(self, title: str, images: Tensor, *, bounded: bool = True) -> Tensor:
        """Project images that others made; warn if they left the ball although told of it.

        Pixels that are NaN or infinite stay as they were in x.
        """
        if images.shape != self.x.shape:
            raise InputError(
                f"{title} gave shape {tuple(images.shape)}, not {tuple(self.x.shape)}."
            )
        images = torch.where(images.isfinite(), images, self.x)
        inside = self.threat_model.project(self.x, images)
        far = float((images - inside).abs().max())
        if bounded and far > _SLACK:
            ball = f"the {self.threat_model.norm} ball"
            words = f"{title} left {ball} by {far:.2g} in a pixel; it was put back."
            warnings.warn(words, MixupInferenceWarning, stacklevel=2)
        return inside


@dataclass(frozen=True)
class Method:
    """What the runner needs to know of an attack, besides its settings.

    The functions take a namespace with all settings, ``defense``, ``x`` and ``options``.

    title: shown with the progress; may name settings, "{attack}".
    function: attacks one batch.
    queries: how many gradients or queries the attack makes of each batch.
    copies: how often it repeats each point, which bounds the batch as the draws do.
    prepare: runs once, before all batches.
    fold: the attack sees the defence through its batches only, so it may be put around a folded,
        faster copy of F.
    """

    title: str
    function: Callable[..., Any]
    queries: Callable[[Any], int]
    copies: Callable[[Any], int] = lambda _: 1
    prepare: Callable[[Any], Any] = lambda _: None
    fold: bool = True


def attack(title: str, **about: Any) -> Callable[[Callable[..., BatchResult]], Any]:
    """Turn a function ``(batch, *, settings) -> BatchResult`` into a public attack; see ``Method``.

    The attack is called as ``(defense, x, y, *, settings, **options)``; unknown keywords raise
    TypeError.
    """

    def decorate(function: Callable[..., BatchResult]) -> Callable[..., AttackResult]:
        method = Method(title, function, **about)

        @wraps(function)
        def call(defense: nn.Module, x: Tensor, y: Tensor, **keywords: Any) -> AttackResult:
            return run(method, defense, x, y, **keywords)

        points = list(inspect.signature(call, follow_wrapped=False).parameters.values())[:3]
        settings = list(inspect.signature(function).parameters.values())[1:]
        options = inspect.signature(AttackOptions).parameters.values()
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*points, *settings, *options], return_annotation=AttackResult
        )
        call.__doc__ = (function.__doc__ or "").replace(_BATCH, _POINTS)
        return call

    return decorate


@timed(Stage.ATTACKING)
def run(
    method: Method, defense: nn.Module, x: Tensor, y: Tensor, /, **keywords: Any
) -> AttackResult:
    """Attack all points and evaluate the success of the examples on fresh draws."""
    own = settings_of(method.function)
    settings = own | {name: keywords.pop(name) for name in own.keys() & keywords.keys()}
    options = parse_options(keywords, own)
    points = check_points(x, y, options.index)
    found, passes = perturb(method, defense, points, settings, options)
    examples = torch.cat([one.examples for one in found]).detach().to(x.device)
    delta = examples - points.x
    fooled = judge(
        defense,
        examples,
        points.y,
        repeats=options.repeats,
        index=points.index,
        batch_size=options.batch_size,
        ranks=options.ranks,
    )
    return AttackResult(
        examples=examples,
        loss=torch.cat([one.loss for one in found]).detach().to(x.device),
        fooled=fooled,
        linf=delta.abs().flatten(1).amax(1),
        l2=length(delta),
        forward=options.ranks.total(passes.forward),
        backward=options.ranks.total(passes.backward),
        trace=torch.cat([one.trace for one in found], dim=1).double().mean(1).detach().cpu(),
    )


@timed(Stage.ATTACKING)
def perturb(
    method: Method,
    defense: nn.Module,
    points: Points,
    settings: Mapping[str, Any],
    options: AttackOptions,
) -> tuple[list[Any], Passes]:
    """Attack all points batch by batch; return the batches' results and the passes they took."""
    check_types(method.function, settings)
    x, ranks = points.x, options.ranks
    call = SimpleNamespace(defense=defense, x=x, options=options, **settings)
    queries, prepared = method.queries(call), method.prepare(call)
    module = defense.inference if isinstance(defense, Detector) else defense
    if method.fold:
        module = accelerate(module, x, images=queries * len(x), precision=options.precision)
    model = QueryModel(module, x, seed=options.seed)
    draws = settings.get("draws", settings.get("samples"))
    target = _targets(model, points, draws and 1, options)
    parts = torch.arange(len(x), device=x.device).split(
        _batch_rows(model, x, draws, method.copies(call), options.batch_size)
    )
    task = options.progress.task(method.title.format(**settings), total=len(parts) * queries)
    counting = count_passes(base_of(model.module), model.passes)
    with task as progress, counting, torch.no_grad():

        def attack_part(rows: Tensor) -> Any:
            batch = Batch(
                model=model,
                x=x[rows],
                y=points.y[rows],
                target=None if target is None else target[rows],
                index=points.index[rows],
                rows=rows,
                threat_model=options.threat_model,
                seed=options.seed,
                prepared=prepared,
                tick=lambda: progress.advance(ranks.size),
            )
            return method.function(batch, **settings)

        return ranks.share(parts, attack_part), model.passes


def _batch_rows(
    model: QueryModel, x: Tensor, draws: int | None, copies: int, batch_size: int
) -> int:
    """Return how many points to attack at a time."""
    if draws is not None:
        return max(1, batch_size // max(model.images(draws), copies * model.images(1)))
    if isinstance(model.module, Defense):
        return batch_size
    return min(batch_size, batch_for(x, model.module))


def _targets(
    model: QueryModel, points: Points, draws: int | None, options: AttackOptions
) -> Tensor | None:
    """Return the classes to go towards, if the attack is targeted."""
    x, y, index = points.x, points.y, points.index
    if options.targets is not None:
        return check_labels(options.targets, count=len(x), what="targets").to(x.device)
    if not options.targeted:
        return None
    with torch.no_grad():
        classes = model.log_probs(x[:1], index[:1], draws, "classes").shape[2]
    check_labels(y, count=len(x), classes=classes)
    return random_targets(y, classes, seed=options.seed, index=index)
