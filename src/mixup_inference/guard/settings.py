"""The settings of MI-Combined behind a guard."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from mixup_inference.defenses import get_preset
from mixup_inference.defenses.early_stopping import Stop
from mixup_inference.errors import InputError
from mixup_inference.experiments.spec.fields import Count, NotNegative, Table
from mixup_inference.validation import describe


class Settings(Table):
    """The settings of MI-Combined behind a guard; see ``CombinedInference``."""

    lam_detect: float = Field(default=0.5, ge=0, le=1)
    lam_defend: float = Field(default=0.4, ge=0, le=1)
    draws: Count = 30
    sampling: Literal["independent", "stratified"] = "independent"
    control_variate: bool = False
    stop: Stop | None = "likely"
    error: float = Field(default=0.03, gt=0, le=0.5)
    engine: str = "folded"
    seed: NotNegative = 0

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            problems = (
                describe(problem, ".".join(map(str, problem["loc"]))) for problem in error.errors()
            )
            raise InputError(" ".join(problems)) from None

    @classmethod
    def of_preset(cls, name: str, **others: Any) -> Self:
        """The settings of a preset of MI-Combined, or of a file that ``tune`` wrote."""
        preset = get_preset(name)
        if preset.kind != "mi-combined":
            raise InputError(
                f"a guard needs a preset of mi-combined; {name} is one of {preset.kind}."
            )
        kept = {key: value for key, value in preset.settings.items() if key != "threshold"}
        return cls(**(kept | others))
