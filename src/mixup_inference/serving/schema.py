"""How the server describes itself: types of answers, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from mixup_inference.serving.service import NOTE
from mixup_inference.serving.tensors import InferenceDocument

DESCRIPTION = f"""An image classifier that flags suspicious inputs.

{NOTE} It is a monitor for careless and transferred attacks, not a wall.
"""
PICTURES = ("image/png", "image/jpeg", "image/webp")
BINARY = {"type": "string", "format": "binary"}

#: What the body of /classify may be, and its parameter.
PICTURE_REQUEST = {
    "parameters": [{
        "name": "seed", "in": "query", "required": False, "schema": {"type": "integer"},
        "description": "For the same draws each time; only if the server allows it.",
    }],
    "requestBody": {"required": True, "content": {
        **{kind: {"schema": BINARY} for kind in PICTURES},
        "multipart/form-data": {"schema": {
            "type": "object", "properties": {"file": BINARY}, "required": ["file"],
            "additionalProperties": False,
        }},
    }},
}  # fmt: skip
#: And of the protocol's requests.
TENSOR_REQUEST = {
    "requestBody": {"required": True, "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/InferenceDocument"}},
        "application/octet-stream": {"schema": BINARY},
    }},
}  # fmt: skip


class Problem(BaseModel):
    """Why there is no answer, in a sentence."""

    error: str


class Classified(BaseModel):
    """What the guard says of a picture.

    An attack that knows the guard evades it: is_adversarial = false does not mean that the image is
    clean.
    """

    label: str = Field(description="The answer: the network's, or MI-OL's if it is flagged.")
    probability: float = Field(description="Of the answer.")
    undefended_label: str = Field(description="What the network alone says.")
    score: float = Field(description="How suspicious the image is.")
    is_adversarial: bool = Field(description=f"Whether the score is over the threshold. {NOTE}")
    draws: int = Field(description="Random mixtures that were made.")
    probabilities: dict[str, float] = Field(description="Of each class.")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, in a route's description."""
    return {status: {"model": Problem} for status in statuses}


def describe(app: FastAPI, name: str) -> dict[str, Any]:
    """FastAPI's description, with the type of requests that are read by us, and the one model."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        document = InferenceDocument.model_json_schema(ref_template="#/components/schemas/{model}")
        inner = document.pop("$defs", {})
        found["components"]["schemas"] |= inner | {"InferenceDocument": document}
        for methods in found["paths"].values():
            for parameter in (p for what in methods.values() for p in what.get("parameters", ())):
                if parameter["name"] == "model_name":
                    parameter["schema"] = {"type": "string", "enum": [name]}
        app.openapi_schema = found
    return app.openapi_schema
