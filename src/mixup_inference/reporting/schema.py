"""The layout of results.json, shared by those who write, read and report it.

A key that earlier versions did not write is ``NotRequired``. Keys that nothing here reads, such as
the identities of cached parts, are allowed and not listed.
"""

from __future__ import annotations

from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from mixup_inference.errors import InputError

SCHEMA = 1

Settings = dict[str, Any]


class Share(TypedDict):
    """A proportion and its 95% interval."""

    accuracy: float
    low: float
    high: float


class Cell(Share):
    """An accuracy over test points; ``right`` says which of them are correct (``as_bits``)."""

    correct: int
    total: int
    right: NotRequired[str]


class Row(TypedDict):
    """A row of the table."""

    title: str
    group: str
    model: str
    defense: str
    settings: NotRequired[Settings]
    passes_per_image: float
    cells: dict[str, Cell]


class Mean(TypedDict):
    """A mean and its standard error."""

    mean: float
    se: float


class Linearity(TypedDict):
    """A model's distance from linearity, over pairs of images."""

    lams: list[float]
    curve: list[Mean]
    overall: Mean
    pairs: int


class Theory(TypedDict):
    """Section 3.2 measured for one attack, kind of mixup inference and ratio."""

    attack: str
    kind: str
    lam: float
    counts: dict[str, int]
    clean: dict[str, Any]
    adversarial: dict[str, Any]
    y: dict[str, Any]
    y_hat: dict[str, Any]
    ric: dict[str, Any]
    ric_on_g: dict[str, Any]
    detection_gap: Mean
    detection_gap_theory: float


class Calibrated(TypedDict):
    """A detector at the threshold that flags a given share of clean points."""

    rate: float
    threshold: float
    false_positives: Cell
    detected: Cell


class Score(TypedDict):
    """A detection score against one attack; ``lam`` is None for a score without mixup."""

    score: str
    lam: float | None
    attack: str
    auc: float
    low: float
    high: float
    roc: NotRequired[dict[str, list[float]]]
    calibrated: NotRequired[Calibrated]


class Detection(TypedDict):
    """All detection scores, and MI-Combined by its threshold."""

    scores: list[Score]
    combined: NotRequired[list[dict[str, Any]]]


class Trial(TypedDict):
    """One setting of a defence, measured on the tuning points."""

    settings: Settings
    clean: Cell
    attacked: dict[str, Cell]
    robust: float
    on_front: bool


class Analysis(TypedDict):
    """What [figures] asks for, of one model."""

    steps: int
    linearity: Linearity
    theory: list[Theory]
    detection: Detection
    tradeoff: NotRequired[dict[str, list[Trial]]]
    gallery: NotRequired[list[dict[str, Any]]]


class Robust(Share):
    """An accuracy under attack over points and draws."""

    points: int
    repeats: int
    any_draw: Share


class Attack(TypedDict):
    """One attack on one row."""

    title: str
    attack: str
    group: str
    settings: Settings
    robust: Robust
    loss: float
    linf: float
    l2: float
    forward: float
    backward: float
    seconds: float
    surrogates: NotRequired[list[str]]


class Check(TypedDict):
    """One check of an attack; ``passed`` is None if it was inconclusive."""

    name: str
    passed: bool | None
    detail: str


class Change(TypedDict):
    """A difference of two accuracies and its 95% interval."""

    difference: float
    low: float
    high: float


class WorstCase(TypedDict):
    """The accuracy under the strongest attack on each point, and how often each was chosen."""

    robust: Robust
    choice: dict[str, int]


class AdaptiveRow(TypedDict):
    """All attacks on one row; ``base`` is the title of its undefended row."""

    title: str
    model: str
    defense: str
    settings: Settings
    base: str | None
    clean: Robust
    attacks: list[Attack]
    worst: WorstCase
    versus_base: Change | None
    checks: list[Check]


class Adaptive(TypedDict):
    """What [adaptive] asks for."""

    points: int
    repeats: int
    eps: float
    norm: str
    draws: int
    checked: NotRequired[dict[str, Any]]
    rows: list[AdaptiveRow]
    samples: list[dict[str, Any]]
    gallery: dict[str, Any] | None
    detectors: list[dict[str, Any]]


class Results(TypedDict):
    """The whole document."""

    schema: int
    name: str
    title: str
    columns: list[str]
    rows: list[Row]
    models: dict[str, dict[str, Any]]
    engines: NotRequired[dict[str, str]]
    trainings: NotRequired[dict[str, dict[str, Any] | None]]
    figures: NotRequired[dict[str, Analysis] | None]
    adaptive: NotRequired[Adaptive | None]
    reused_models: NotRequired[dict[str, str]]
    artefacts: NotRequired[dict[str, str | None]]
    points: dict[str, int]
    spec: dict[str, Any]
    seed: int
    device: str
    versions: dict[str, str]
    timing: dict[str, Any]
    checksum: NotRequired[str]


def check_results(document: object, source: str) -> Results:
    """Refuse a document that is not the results of a run; ``source`` names it in messages."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 (slow to import)

    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{source} is not the results.json of a run by this version.")
    try:
        TypeAdapter(Results).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{source} is not the results.json of a run by this version: {where}: {first['msg']}."
        ) from None
    return cast("Results", document)
