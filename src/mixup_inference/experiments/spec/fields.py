"""What all tables of a spec share: unknown keys are errors that name the nearest known one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mixup_inference.errors import InputError, unknown_name
from mixup_inference.utils.text import is_plain


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
            for key in value.keys() - cls.model_fields.keys():
                raise unknown_name("key", key, cls.model_fields)
        return value
