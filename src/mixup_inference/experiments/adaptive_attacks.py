"""One attack on one row: run, judged by fresh draws, stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks import AttackResult, get_attack, judge, library_version, run_attack
from mixup_inference.datasets import LabelledImages
from mixup_inference.defenses import DEFENSES, MixupInference
from mixup_inference.draws import derive_seed
from mixup_inference.experiments.cache import Compute, Identity, TensorFile, Tensors
from mixup_inference.experiments.code_hash import code_hash
from mixup_inference.experiments.data import first
from mixup_inference.experiments.spec import AdaptiveAttackSpec, AdaptiveSpec, RowSpec
from mixup_inference.metrics.robust_accuracy import RobustAccuracy

if TYPE_CHECKING:
    from mixup_inference.experiments.experiment import Experiment


@dataclass(frozen=True)
class Record:
    """One attack on one row, as it is stored."""

    attack: AdaptiveAttackSpec
    file: TensorFile
    fooled: Tensor
    choosing: Tensor

    @property
    def group(self) -> str:
        """Its threat model."""
        return get_attack(self.attack.attack).threat_model

    def entry(self) -> dict[str, Any]:
        """As results.json has it."""
        return {
            "title": self.attack.name,
            "attack": self.attack.attack,
            "group": self.group,
            "settings": self.attack.settings,
            "robust": RobustAccuracy(self.fooled).entry(),
            **self.file.facts,
        }


def base_row(rows: Iterable[RowSpec], model: str) -> RowSpec:
    """A model's undefended row; if the table has none, one that is made for it."""
    bare = (row for row in rows if row.model == model and row.defense == "none")
    return next(bare, RowSpec(title=f"{model} (no defence)", model=model))


def adaptive_rows(rows: tuple[RowSpec, ...], wanted: tuple[str, ...]) -> list[RowSpec]:
    """The rows that are attacked, each model's undefended one before its defended ones."""
    chosen = [row for row in rows if not wanted or row.title in wanted]
    out = []
    for model in dict.fromkeys(row.model for row in chosen):
        defended = [row for row in chosen if row.model == model and row.defense != "none"]
        out += [base_row(rows, model), *defended]
    return out


def is_mixup(row: RowSpec) -> bool:
    """Whether a row's defence is mixup inference as the paper attacks it."""
    return DEFENSES[row.defense].makes(MixupInference)


def sample_attacks(adaptive: AdaptiveSpec, norm: str) -> list[tuple[str, int, AdaptiveAttackSpec]]:
    """The points of Figure 4: the curve, the number of adaptive samples, the attack."""
    curves = {
        "official": ("official-adaptive", "samples"),
        "paper": ("paper-adaptive", "samples"),
        "eot": ("eot-pgd", "draws"),
    }
    out = []
    for curve, (attack, key) in curves.items():
        for count in adaptive.samples if norm in get_attack(attack).norms else ():
            settings = {"steps": adaptive.figure_steps, key: count}
            title = f"{curve} with {count} samples"
            out.append((curve, count, AdaptiveAttackSpec(attack=attack, title=title, **settings)))
    return out


class AdaptiveEvaluation:
    """An experiment's points, budget and store, for adaptive attacks."""

    def __init__(self, experiment: Experiment, spec: AdaptiveSpec) -> None:
        self.experiment = experiment
        self.spec = spec
        attack = experiment.spec.attack
        assert attack is not None
        self.eps, self.norm, self.precision = attack.eps, attack.norm, attack.precision
        self.budget = {"eps": attack.eps, "norm": attack.norm, "repeats": spec.repeats}
        self.seed = derive_seed(experiment.spec.seed, "adaptive attack")
        self.points = first(experiment.data.points["test"], spec.points)

    def record(
        self, row: RowSpec, attack: AdaptiveAttackSpec, *, points: LabelledImages | None = None
    ) -> Record:
        """One attack on one row, from the folder if it is there.

        On other points than the bench's it is no candidate for the worst case, so there is
        nothing to choose by: ``choosing`` is ``fooled``.
        """
        experiment = self.experiment
        candidate = points is None and get_attack(attack.attack).worst_case
        points = self.points if points is None else points
        names = experiment.spec.surrogates(attack, row.model)
        identity = self.identity(row, len(points)) | {
            "attack": attack.attack,
            "attack settings": attack.settings,
            "surrogates": [experiment.models.identity(name) for name in names],
            "candidate": candidate,
            "library": library_version(attack.attack),
            "code": code_hash(get_attack(attack.attack).function, judge),
        }

        def compute() -> Tensors:
            defense = experiment.defense(row)
            brought = {"surrogates": [experiment.models[name] for name in names]} if names else {}
            result = self.run(attack, defense, points, **brought)
            choosing = result.fooled
            if candidate:
                choosing = self.judge(defense, result.examples, points, stream="choose")
            facts = {
                "loss": float(result.loss.mean()),
                "linf": float(result.linf.max()),
                "l2": float(result.l2.mean()),
                "forward": result.forward / len(points),
                "backward": result.backward / len(points),
                "trace": [round(value, 5) for value in result.trace.tolist()],
            }
            tensors = {
                "examples": result.examples.cpu(),
                "fooled": result.fooled.to(torch.uint8),
                "choosing": choosing.to(torch.uint8),
            }
            return tensors, facts | ({"surrogates": names} if names else {})

        what = f"{attack.name} on {row.title}"
        name = f"{row.model}-{row.defense}-{attack.attack.replace(':', '-')}"
        found = experiment.cached("attacks", what, identity, compute, name=name)
        return Record(attack, found, found["fooled"].bool(), found["choosing"].bool())

    def identity(self, row: RowSpec, count: int) -> Identity:
        """What determines an attack on a row, but for the attack."""
        experiment = self.experiment
        return {
            **experiment.defense_identity(row.defense, row.settings),
            **self.budget,
            **({} if self.precision == "32-true" else {"precision": self.precision}),
            "model": experiment.models.identity(row.model),
            "seed": [experiment.spec.seed, self.seed],
            "points": experiment.data.hash_of("test"),
            "count": count,
        }

    def options(self, points: LabelledImages) -> dict[str, Any]:
        """The options that all attacks share."""
        own = {"seed": self.seed, "index": points.index, "precision": self.precision}
        return {**self.budget, **own, **self.experiment.options}

    def run(
        self, attack: AdaptiveAttackSpec, target: nn.Module, points: LabelledImages, **brought: Any
    ) -> AttackResult:
        """Run an attack on a defence, a model or a detector."""
        options = self.options(points) | brought
        x, y, settings = self.clean(points), points.labels, attack.settings
        return run_attack(attack.attack, target, x, y, settings=settings, **options)

    def clean(self, points: LabelledImages) -> Tensor:
        """The points' images, where the model is."""
        return points.pixels.to(self.experiment.device)

    def judge(
        self, defense: nn.Module, x: Tensor, points: LabelledImages, *, stream: str = "judge"
    ) -> Tensor:
        """Whether images fool a defence, in each of the repeats."""
        options = {"repeats": self.spec.repeats, "index": points.index, **self.experiment.options}
        return judge(defense, x, points.labels, stream=stream, **options)

    def part(self, what: str, row: RowSpec, more: Identity, compute: Compute, *code: Any) -> Any:
        """A result of a row that this code computes, from the folder if it is there."""
        more = {"what": what, "code": code_hash(*code, judge), **more}
        identity = self.identity(row, len(self.points)) | more
        return self.experiment.cached("adaptive", f"{what} of {row.title}", identity, compute)
