"""Variants of a spec: fewer points, another precision or engine, a smoke test."""

from __future__ import annotations

from mixup_inference.attacks import Precision
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec.experiment import Spec
from mixup_inference.experiments.spec.load import check_spec
from mixup_inference.models.engines import check_engine
from mixup_inference.validation import check_int


def on_points(spec: Spec, count: int) -> Spec:
    """The same experiment on the first so many of its test points."""
    if check_int(count, what="the number of points", least=1) > spec.data.test:
        raise InputError(f"{spec.name} has {spec.data.test} test points, not {count}.")
    document = spec.model_dump(exclude_none=True)
    document |= {"name": f"{spec.name}-{count}", "title": f"{spec.title}, {count} points"}
    document["data"]["first"] = count
    return check_spec(document, allow_code=True)


def in_precision(spec: Spec, precision: str) -> Spec:
    """The same experiment with all its models trained in this precision."""
    document = spec.model_dump(exclude_none=True)
    for name, model in document["models"].items():
        if spec.is_trained(name) and precision != (spec.recipe(name).precision or "32-true"):
            model["precision"] = precision
    return Spec.model_validate(document)


def with_engine(spec: Spec, engine: str) -> Spec:
    """The same experiment with another engine."""
    return spec.model_copy(update={"engine": check_engine(engine)})


def with_attack_precision(spec: Spec, precision: Precision) -> Spec:
    """The same experiment with attacks that compute in this precision."""
    if spec.attack is None:
        return spec
    return spec.model_copy(
        update={"attack": spec.attack.model_copy(update={"precision": precision})}
    )


def smoke(spec: Spec) -> Spec:
    """The same experiment cut down to see it run from end to end.

    32 test points; one step of training on 32 images, of the attacks and of those inside
    adversarial training; two draws.
    """
    one_step = {"epochs": 1, "max_steps": 1, "batch_size": 32, "steps": 1}
    document = spec.model_dump(exclude_none=True)
    document |= {"name": f"{spec.name}-smoke", "title": f"{spec.title} (smoke)", "draws": 2}
    document["batch_size"] = 32
    document["data"] |= {"test": min(32, spec.data.test), "tuning": 0, "calibration": 0}
    for name, model in document["models"].items():
        document["models"][name] = model | (one_step if spec.is_trained(name) else {})
    if spec.attack is not None:
        document["attack"]["steps"] = (1,)
    if spec.adaptive is not None:
        document["adaptive"] |= {"points": 8, "repeats": 2, "checks": 0, "gallery": 1}
        document["adaptive"] |= {"detectors": (), "samples": spec.adaptive.samples[:1]}
        document["adaptive"] |= {"figure_points": 4, "figure_steps": 1}
        document["adaptive"]["attacks"] = [
            attack.smoke().model_dump() for attack in spec.adaptive.attacks
        ]
    if spec.figures is not None:
        document["figures"] |= {"points": 32, "pairs": 16, "lams": (0.5,), "gallery": 2}
    return Spec.model_validate(document)
