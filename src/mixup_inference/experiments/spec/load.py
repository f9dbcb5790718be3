"""From a TOML file to a spec that has been checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mixup_inference.attacks import ATTACKS, is_library
from mixup_inference.datasets import DATASETS, FOLDER
from mixup_inference.defenses import DEFENSES
from mixup_inference.detection import SCORES
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.experiments.spec.experiment import Spec
from mixup_inference.models import NETWORKS
from mixup_inference.registry import Registry, is_code
from mixup_inference.training import OBJECTIVES
from mixup_inference.utils.io import is_file, parse_toml, read_text

#: Bytes; no spec is larger.
LARGEST = 1_000_000


def shipped_specs() -> dict[str, Path]:
    """The specs inside the package, by name."""
    folder = Path(str(resources.files("mixup_inference"))) / "experiments" / "shipped"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_spec(name_or_path: str, *, allow_code: bool = False) -> Spec:
    """A shipped spec by name, or any spec by the path of its TOML file.

    A spec that names Python code to run (``package.module:attribute`` as a defence, an attack, a
    detection score, an objective, a network or a data set) is refused unless ``allow_code`` says
    that it has been read and is trusted.
    """
    shipped = shipped_specs()
    if name_or_path in shipped:
        path = shipped[name_or_path]
    elif name_or_path.endswith(".toml") or is_file(Path(name_or_path)):
        path = Path(name_or_path)
    else:
        raise unknown_name("experiment", name_or_path, shipped)
    text = read_text(path, what="the spec", most=LARGEST)
    return parse_spec(text, source=str(name_or_path), allow_code=allow_code)


def parse_spec(text: str, *, source: str = "spec", allow_code: bool = False) -> Spec:
    """Check a spec's text; every problem is one line that says where and what."""
    return check_spec(parse_toml(text, source), source=source, allow_code=allow_code)


def check_spec(
    document: Mapping[str, Any], *, source: str = "spec", allow_code: bool = False
) -> Spec:
    """Check a spec that is already parsed; without a ``source``, one made of options."""
    _load_code(document, source, allow_code=allow_code)
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        problems = error.errors()
        # An item that is refused is also missing from its list, which is not worth a line.
        first = [p for p in problems if p["type"] != "too_short"] or problems
        lines = dict.fromkeys(_in_words(problem, source) for problem in first)
        raise InputError("\n".join(lines)) from None
    except RecursionError:
        raise InputError(f"{source or 'an option'} is nested too deeply.") from None


def _load_code(document: Mapping[str, Any], source: str, *, allow_code: bool) -> None:
    """Load the code that a document names as ``package.module:attribute``, or refuse to."""
    for registry, name in _named(document):
        is_ours = registry is DATASETS and name.startswith(FOLDER)
        if is_ours or not is_code(name) or (registry is ATTACKS and is_library(name)):
            continue
        if not allow_code:
            raise InputError(
                f"{source}: the {registry.kind} {name!r} is Python code, and this spec would run "
                "it. If you know and trust that code, allow it with --allow-code "
                "(allow_code=True in Python)."
            )
        if registry is not NETWORKS:  # which are imported when they are built
            registry.load(name)


def _named(document: Mapping[str, Any]) -> Iterator[tuple[Registry[Any], str]]:
    """All names of things in a document that has not been checked yet, with their registries."""
    models = [*_at(document, "models", "*"), document]
    places: list[tuple[Registry[Any], list[Any]]] = [
        (DATASETS, _at(document, "data", "name")),
        (NETWORKS, [n for m in models for n in _at(m, "network", "name")]),
        (OBJECTIVES, [o for m in models for o in _at(m, "objective")]),
        (OBJECTIVES, _at(document, "training", "objective")),
        (DEFENSES, _at(document, "rows", "*", "defense")),
        (DEFENSES, _at(document, "figures", "defenses", "*")),
        (SCORES, _at(document, "figures", "scores", "*")),
        (SCORES, _at(document, "adaptive", "detector_scores", "*")),
        (ATTACKS, _at(document, "adaptive", "attacks", "*", "attack")),
    ]
    for registry, names in places:
        yield from ((registry, name) for name in names if isinstance(name, str))


def _at(value: Any, *path: str) -> list[Any]:
    """What stands at a path of keys in nested tables and lists; "*" is every item."""
    if not path:
        return [value]
    key, *rest = path
    if key == "*":
        inside = value.values() if isinstance(value, Mapping) else value
        items = list(inside) if isinstance(inside, list | tuple | ValuesView) else []
    else:
        items = [value[key]] if isinstance(value, Mapping) and key in value else []
    return [found for item in items for found in _at(item, *rest)]


def _in_words(problem: Any, source: str) -> str:
    """One of pydantic's errors as a sentence, after the source and the place in it.

    Options have no places, only names: the last of the place, unless the cause says it.
    """
    loc, cause = problem["loc"], problem.get("ctx", {}).get("error")
    if not source:
        loc = [part for part in loc if isinstance(part, str) and cause is None][-1:]
    where = ".".join(str(part) for part in loc)
    if problem["type"] == "missing":
        what, where = f"{where!r} is missing; add it.", ""
    else:
        saw = f"{problem['msg']}; saw {_short(problem['input'])}."
        what = str(cause) if cause is not None else saw
    return ": ".join(part for part in (source, where, what) if part)


def _short(value: Any) -> str:
    """A value as it was written, but not pages of it."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested very deeply"
    return text if len(text) <= 300 else f"{text[:300]}..."
