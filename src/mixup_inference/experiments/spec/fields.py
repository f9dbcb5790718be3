"""What all tables of a spec share: unknown keys are errors that name the nearest known one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.utils.text import is_plain


def check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name that is not known, and name the nearest that is."""
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known)


def check_different(values: Sequence[Any], problem: str) -> None:
    """Refuse a value that is there twice; it stands in the place of {} in the problem."""
    for value in values:
        if values.count(value) > 1:
            raise InputError(problem.format(repr(value)))


def _one_line(text: str) -> str:
    if not is_plain(text):
        raise InputError(f"must be one line without control characters; saw {text!r}.")
    return text


#: It becomes part of file names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

Title = Annotated[str, AfterValidator(_one_line)]

Positive = Annotated[float, Field(gt=0)]

Count = Annotated[int, Field(ge=1)]

NotNegative = Annotated[int, Field(ge=0)]


class Table(BaseModel):
    """A TOML table in which an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            check_known("key", value, cls.model_fields)
        return value


class OpenTable(Table):
    """A TOML table whose further keys are settings of what it names."""

    model_config = ConfigDict(extra="allow")

    @property
    def settings(self) -> dict[str, Any]:
        """The further keys."""
        return dict(self.model_extra or {})
