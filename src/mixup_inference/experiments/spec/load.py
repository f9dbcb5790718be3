"""From a TOML file to a spec that has been checked."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mixup_inference.datasets import DATASETS, FOLDER
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.experiments.spec.experiment import Spec
from mixup_inference.registry import is_code
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

    A spec that names Python code to run (``package.module:attribute`` as a network, an objective or
    a data set) is refused unless ``allow_code`` says that it has been read and is trusted.
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
    """Check a spec that is already parsed."""
    try:
        spec = Spec.model_validate(document, context={"allow_code": allow_code})
    except ValidationError as error:
        problems = error.errors()
        # An item that is refused is also missing from its list, which is not worth a line.
        first = [p for p in problems if p["type"] != "too_short"] or problems
        lines = [_in_words(problem) for problem in first]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply.") from None
    _check_code(spec, source, allow_code=allow_code)
    return spec


def _check_code(spec: Spec, source: str, *, allow_code: bool) -> None:
    """Refuse a spec that names Python code, which running it would run, or load that code."""
    networks = (spec.network, *(model.network for model in spec.models.values()))
    names = [("network", n.name) for n in networks if n is not None and n.is_foreign]
    settings = (spec.training, *(model.training for model in spec.models.values()))
    registries: dict[str, Any] = {"objective": OBJECTIVES, "data set": DATASETS}
    names += [("objective", s["objective"]) for s in settings if is_code(s.get("objective", ""))]
    if is_code(spec.data.name) and not spec.data.name.startswith(FOLDER):
        names.append(("data set", spec.data.name))
    for kind, name in names:
        if not allow_code:
            raise InputError(
                f"{source}: the {kind} {name!r} is Python code, and this spec would run it. If you "
                "know and trust that code, allow it with --allow-code (allow_code=True in Python)."
            )
        if kind in registries:  # networks are imported when they are built
            registries[kind].load(name)


def _in_words(problem: Any) -> str:
    """One of pydantic's errors as a sentence."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{where!r} is missing; add it."
    cause = problem.get("ctx", {}).get("error")
    what = str(cause) if cause is not None else f"{problem['msg']}; saw {_short(problem['input'])}."
    return f"{where}: {what}" if where else what


def _short(value: Any) -> str:
    """A value as it was written, but not pages of it."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested very deeply"
    return text if len(text) <= 300 else f"{text[:300]}..."
