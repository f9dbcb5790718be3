"""Attacks of foolbox, torchattacks, ART and AutoAttack, each called in its library's own way."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mixup_inference.attacks.base import Batch, BatchResult
from mixup_inference.attacks.base import attack as batch_attack
from mixup_inference.attacks.losses import cross_entropy
from mixup_inference.attacks.options import Count
from mixup_inference.attacks.query import Averaged, lent, other_generators_kept
from mixup_inference.attacks.threat_model import Norm, ThreatModel
from mixup_inference.draws import derive_seed
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.models.call import dtype_of
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_labels

#: AutoAttack's attacks that run alone.
SINGLE = ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]


@dataclass(frozen=True)
class Job:
    """What a library is given."""

    name: str
    maker: Any
    model: Averaged
    batch: Batch
    classes: int
    seed: int
    settings: dict[str, Any]

    @property
    def x(self) -> Tensor:
        """The images, clipped to [0, 1], as some libraries insist."""
        return self.batch.x.clamp(0, 1)

    @property
    def labels(self) -> Tensor:
        """The classes to go away from, or towards."""
        return self.batch.y if self.batch.target is None else self.batch.target

    def arguments(self, **ours: Any) -> dict[str, Any]:
        """Return those of our arguments that the class takes, and the caller's settings."""
        known, radius, eps = takes(self.maker), _radius(self.maker), self.batch.threat_model.eps
        if radius is not None:
            ours[radius] = eps
            for step in known.keys() & {"alpha", "eps_step"}:
                ours[step] = eps * known[step].default / known[radius].default
        return {name: value for name, value in ours.items() if name in known} | self.settings


def _foolbox(job: Job) -> Any:
    foolbox = importlib.import_module("foolbox")
    model = foolbox.PyTorchModel(job.model, bounds=(0, 1), device=job.x.device)
    kind = "Misclassification" if job.batch.target is None else "TargetedMisclassification"
    criterion = getattr(foolbox.criteria, kind)(job.labels)
    eps = job.batch.threat_model.eps if is_fixed(job.maker) else None
    return job.maker(**job.settings)(model, job.x, criterion, epsilons=eps)[1]


def _torchattacks(job: Job) -> Any:
    norm = {"linf": "Linf", "l2": "L2"}[job.batch.threat_model.norm]
    attack = job.maker(job.model, **job.arguments(norm=norm, seed=job.seed, n_classes=job.classes))
    attack.set_device(job.x.device)
    if job.batch.target is not None:
        attack.set_mode_targeted_by_label(quiet=True)
    return attack(job.x, job.labels)


def _art(job: Job) -> Tensor:
    classifier = importlib.import_module("art.estimators.classification").PyTorchClassifier(
        job.model, loss=nn.CrossEntropyLoss(), input_shape=tuple(job.x.shape[1:]),
        nb_classes=job.classes, clip_values=(0, 1),
        device_type="cpu" if job.x.device.type == "cpu" else "gpu",
    )  # fmt: skip
    targeted = job.batch.target is not None
    if targeted and "targeted" not in takes(job.maker):
        raise InputError(f"art:{job.name} cannot go towards a class; leave targeted out.")
    norm = {"linf": np.inf, "l2": 2}[job.batch.threat_model.norm]
    ours = {"norm": norm, "targeted": targeted, "batch_size": len(job.x), "verbose": False}
    attack = job.maker(classifier, **job.arguments(**ours))
    labels = functional.one_hot(job.labels, job.classes)
    out = attack.generate(job.x.float().cpu().numpy(), labels.float().cpu().numpy())
    return torch.from_numpy(out)


def _autoattack(job: Job) -> Any:
    if job.batch.target is not None:
        raise InputError("AutoAttack chooses its targets itself; leave targeted and targets out.")
    single = job.name in SINGLE
    threat_model = job.batch.threat_model
    attack = job.maker(
        job.model, norm={"linf": "Linf", "l2": "L2"}[threat_model.norm], eps=threat_model.eps,
        seed=job.seed, device=job.x.device, version="custom" if single else job.name,
        attacks=[job.name] if single else None,
    )  # fmt: skip
    for part in (attack.apgd, attack.apgd_targeted, attack.fab, attack.square):
        most = {"n_target_classes": min(getattr(part, "n_target_classes", 9), job.classes - 1)}
        for setting, value in (most | job.settings).items():
            if hasattr(part, setting):
                setattr(part, setting, value)
    return attack.run_standard_evaluation(job.x, job.labels, batch_size=len(job.x))[0]


class Library(NamedTuple):
    """A library: how it runs an attack, where its attacks are, its package, how to install it."""

    run: Callable[[Job], Any]
    module: str
    package: str
    install: str = "pip install mixup-inference[peers]"


LIBRARIES = {
    "art": Library(_art, "art.attacks.evasion", "adversarial-robustness-toolbox"),
    "autoattack": Library(_autoattack, "pyautoattack", "pyautoattack"),
    "foolbox": Library(_foolbox, "foolbox.attacks", "foolbox"),
    "torchattacks": Library(
        _torchattacks, "torchattacks", "torchattacks", "pip install --no-deps torchattacks"
    ),
}


def is_library(name: str) -> bool:
    """Whether a name is ``library:Name``, another library's attack."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library in LIBRARIES


def installed_version(name: str) -> str:
    """Return the version of the library that ``library:Name`` comes from."""
    return importlib.metadata.version(LIBRARIES[name.partition(":")[0]].package)


def takes(maker: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments that a class takes."""
    return inspect.signature(maker).parameters


def _radius(maker: Any) -> str | None:
    """Return the class's name for eps, if its constructor takes one."""
    return next((name for name in ("eps", "max_epsilon") if name in takes(maker)), None)


def is_fixed(maker: Any) -> bool:
    """Whether an attack of foolbox keeps within eps, rather than looking for the nearest."""
    return any(kind.__name__ == "FixedEpsilonAttack" for kind in maker.__mro__)


def norm_of(maker: Any) -> str | None:
    """The only norm that an attack bounds, "any" if it asks, None if it bounds nothing."""
    if is_fixed(maker):
        return f"l{maker.distance.p:g}"
    if _radius(maker) is None:
        return None
    if "norm" in takes(maker):
        return "any"
    return "l2" if maker.__name__.endswith("L2") else "linf"


_VERSIONS = ["plus", "rand", "standard"]

_AUTOATTACK = ["eot_iter", "n_iter", "n_queries", "n_restarts", "n_target_classes", "p_init", "rho"]

#: Settings by which libraries write logs to a folder of the caller's choice.
_LOGS = {"summary_writer", "tensorboard"}


def prepare_peer(call: Any) -> tuple[Any, Averaged]:
    """Return the library's class, and the defence as the library sees it."""
    maker = check_peer(call.attack, call.settings, norm=call.options.norm)
    return maker, _Boxed(call.defense, call.x, draws=call.draws, seed=call.options.seed)


@batch_attack("{attack}", queries=lambda _: 1, prepare=prepare_peer, fold=False)
def peer_attack(
    batch: Batch,
    *,
    attack: str = "foolbox:LinfPGD",
    draws: Count = 10,
    settings: Mapping[str, Any] | None = None,
) -> BatchResult:
    """An attack of another library, on the log of the mean prediction over K fresh draws.

    The library sees a plain classifier (``Averaged``); success is evaluated as for all attacks.
    That matters: AutoAttack, also in its "rand" version, counts a point as broken after a single
    wrong answer and stops there, so lucky draws count; and points that it does not break stay at x.

    eps, norm and targets are passed in each library's own way; the other settings keep their
    defaults, with step sizes in their usual ratio to eps. Attacks that search for the nearest
    example instead (DeepFool, C&W, DDN, ...) ignore eps; their examples are projected onto the
    ball, where they may no longer fool. Where a library returns NaN, the pixel stays as in x.

    The libraries draw from torch's, NumPy's and Python's global generators, which are seeded for
    each batch and restored afterwards. They drop and reorder points, so draws belong to a row of a
    call here: the same settings give the same examples, another batch size gives others. The loss
    is the cross-entropy of the mean prediction; its trace has x and the example.

    Args:
        batch: the points under attack.
        attack: the library and its name for the attack, see ``peer_names``: "foolbox:LinfPGD",
            "torchattacks:APGD", "art:SquareAttack", "autoattack:apgd-ce". AutoAttack's "rand"
            averages 20 gradients by itself: give it draws=1.
        draws: K.
        settings: keyword arguments of the library's class; for AutoAttack n_iter, n_restarts,
            eot_iter, n_queries, n_target_classes, p_init, rho.
        **options: see ``AttackOptions``.
    """
    library, _, name = attack.partition(":")
    maker, model = batch.prepared
    log_p = batch.model.log_probs(batch.x, batch.index, draws, "first")
    check_labels(batch.y, count=len(batch.y), classes=log_p.shape[2])
    key = derive_seed(batch.seed, "peer", attack, int(batch.index[0])) % 2**32
    job = Job(name, maker, model, batch, log_p.shape[2], key, dict(settings or {}))
    try:
        with lent(model.module, key, batch.x), timed(Stage.PEERS):
            out: Tensor = LIBRARIES[library].run(job).detach().to(batch.x)
    except InputError:
        raise
    except (TypeError, ValueError, IndexError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{attack} refuses this model or these settings: {error!r}.") from error
    examples = batch.accept(attack, out, bounded=norm_of(maker) is not None)
    batch.tick()
    first = cross_entropy(log_p, batch.y, batch.target)
    last = batch.loss(examples, "ce", draws, "last")
    return BatchResult(examples, last, torch.stack([first, last]))


def peer_names(library: str) -> list[str]:
    """Return the attacks of a library that ``peer_attack`` knows, without the library's name."""
    module = _import(library)
    if library == "autoattack":
        return sorted(SINGLE + _VERSIONS)
    if library == "torchattacks":
        return sorted(set(module.__all__) - set(module.__wrapper__))
    if library == "foolbox":
        return _classes(module, module.Attack)
    classifier = importlib.import_module("art.estimators.classification").PyTorchClassifier
    names = _classes(module, importlib.import_module("art.attacks.attack").EvasionAttack)

    def fits(name: str) -> bool:
        needs = getattr(module, name)._estimator_requirements
        return "TensorFlow" not in name and all(issubclass(classifier, need) for need in needs)

    return [name for name in names if fits(name)]


def check_peer(
    attack: str, settings: Mapping[str, Any] | None = None, *, norm: Norm | None = None
) -> Any:
    """Return the class of an attack; refuse missing libraries, unknown names, settings, norms."""
    library, _, name = attack.partition(":")
    module, names = _import(library), peer_names(library)
    if name not in names:
        raise unknown_name(f"{library} attack", name, names)
    maker = module.AutoAttack if library == "autoattack" else getattr(module, name)
    ours = {"eps", "max_epsilon", "norm", "seed", "targeted"}
    known = set(takes(maker)) - ours - _LOGS - {"model", "estimator", "classifier"}
    if library == "autoattack":
        known = set(_AUTOATTACK)
    for setting in settings or {}:
        if setting in ours:
            raise InputError(f"{setting} is an option of peer_attack, not a setting of {attack}.")
        if setting not in known:
            raise unknown_name(f"setting of {attack}", setting, known)
    if norm is None:
        return maker
    ThreatModel(norm, 0.0)  # refuses unknown norms
    bounded = norm_of(maker)
    if bounded not in (None, "any", norm):
        raise InputError(
            f"{attack} is bounded in {bounded}, not in {norm}; give norm={bounded!r}."
            if bounded in ("linf", "l2")
            else f"{attack} is bounded in {bounded}; only linf and l2 are known here."
        )
    return maker


class _Boxed(Averaged):
    """For attacks that leave [0, 1]: they see the nearest image, and gradients pass through."""

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities, shape (batch, classes)."""
        x = x.to(dtype_of(self.module))  # ART hands over single precision
        return super().forward(x + (x.clamp(0, 1) - x).detach())


def _import(library: str) -> Any:
    if library not in LIBRARIES:
        raise unknown_name("attack library", library, LIBRARIES)
    _, place, _, how = LIBRARIES[library]
    try:
        with other_generators_kept():  # ART draws when it is imported
            return importlib.import_module(place)
    except ImportError as error:
        raise InputError(f"{place} cannot be imported: {error}. Run `{how}`.") from error


def _classes(module: Any, kind: type) -> list[str]:
    found = inspect.getmembers(module, inspect.isclass)
    return [name for name, one in found if issubclass(one, kind) and not inspect.isabstract(one)]
