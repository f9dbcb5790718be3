"""Read a request of the Open Inference Protocol: tensors in JSON, or in binary behind it.

Not with kserve's reader, which takes what is malformed for a fault of the server, and makes Python
numbers of binary tensors.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import orjson
from kserve import InferInput, InferRequest
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.v2_datamodels import InferenceRequest, RequestInput
from pydantic import ConfigDict, Field, ValidationError

from mixup_inference.serving.limits import Refusal

Array = np.ndarray[Any, Any]

#: How many bytes of a binary request, or answer, are its JSON.
JSON_LENGTH = "inference-header-content-length"
IMAGES, SEED = "images", "seed"
INPUT_TYPES = {IMAGES: ("FP32", "UINT8"), SEED: ("INT64",)}
DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "UINT8": np.dtype("u1"),
    "INT64": np.dtype("<i8"),
}


class InputTensor(RequestInput):
    """A tensor of a request; ``data`` is missing where its bytes come behind the JSON."""

    model_config = ConfigDict(strict=True)
    name: Literal["images", "seed"]
    datatype: Literal["FP32", "UINT8", "INT64"]
    data: list[Any] | None = None


class InferenceDocument(InferenceRequest):
    """The JSON of a request: ``images`` and, if the server allows it, ``seed``."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "example": {
                "inputs": [
                    {"name": IMAGES, "shape": [1, 1, 2, 2], "datatype": "UINT8", "data": [0] * 4}
                ]
            }
        },
    )
    inputs: list[InputTensor] = Field(min_length=1, max_length=len(INPUT_TYPES))


def read_request(body: bytes, json_length: str | None, model: str) -> InferRequest:
    """A request from its bytes, every tensor as an array of its type and shape; or a Refusal."""
    end = len(body)
    if json_length is not None:
        if not (json_length.isascii() and json_length.isdigit()) or int(json_length) > end:
            raise Refusal(400, f"{JSON_LENGTH} must be a number, at most the length of the body.")
        end = int(json_length)
    try:
        document = InferenceDocument.model_validate(orjson.loads(body[:end]))
    except orjson.JSONDecodeError:
        raise Refusal(400, "the body is not JSON.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise Refusal(400, f"the request is not valid: {place:.80}: {first['msg']}.") from None
    inputs: list[InferInput] = []
    for tensor in document.inputs:
        if tensor.name in (read.name for read in inputs):
            raise Refusal(400, f"the input {tensor.name} is given twice.")
        array, end = _array(tensor, body, end)
        inputs.append(InferInput(tensor.name, tensor.shape, tensor.datatype, array))
    if end != len(body):
        raise Refusal(400, f"{len(body) - end} bytes follow the last tensor.")
    parameters = document.parameters or {}
    all_binary = parameters.get("binary_data_output") is True
    outputs = [
        RequestedOutput(
            output.name,
            {"binary_data": (output.parameters or {}).get("binary_data", all_binary) is True},
        )
        for output in document.outputs or ()
    ]
    return InferRequest(
        model,
        inputs,
        request_id=document.id,
        parameters={"binary_data_output": all_binary},
        request_outputs=outputs or None,
    )


def _array(tensor: InputTensor, body: bytes, start: int) -> tuple[Array, int]:
    """A tensor's array, from JSON or from the bytes at ``start``, and where the next one starts."""
    kinds = INPUT_TYPES[tensor.name]
    if tensor.datatype not in kinds:
        raise Refusal(400, f"{tensor.name} must be {' or '.join(kinds)}; saw {tensor.datatype}.")
    dtype = DTYPES[tensor.datatype]
    if tensor.data is not None:
        array = _from_json(tensor.name, tensor.data, dtype)
    else:
        size = (tensor.parameters or {}).get("binary_data_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise Refusal(400, f"{tensor.name} has neither data nor a binary_data_size.")
        if start + size > len(body) or size % dtype.itemsize:
            raise Refusal(400, f"{tensor.name} does not have the {size} bytes that it says.")
        array = np.frombuffer(body, dtype, size // dtype.itemsize, start).copy()
        start += size
    if min(tensor.shape, default=1) < 0 or _product(tensor.shape) != array.size:
        shape = str(tensor.shape)
        raise Refusal(400, f"{tensor.name} has {array.size} numbers, which is not {shape:.80}.")
    return array.reshape(tensor.shape), start


def _product(shape: list[int]) -> int:
    size = 1
    for side in shape[:8]:
        size *= side
    return size if len(shape) <= 8 else -1


def _from_json(name: str, data: list[Any], dtype: np.dtype[Any]) -> Array:
    """Numbers from JSON, nested or not; none is cut, rounded to an integer, or read from text."""
    try:
        given = np.asarray(data)
    except (ValueError, OverflowError):
        raise Refusal(400, f"the data of {name} is not a tensor: its rows differ.") from None
    whole = dtype.kind in "iu"
    if given.size and given.dtype.kind not in ("iu" if whole else "iuf"):
        numbers = "whole numbers" if whole else "numbers"
        raise Refusal(400, f"the data of {name} must be {numbers}.")
    if whole and given.size:
        limits = np.iinfo(dtype)
        if int(given.min()) < limits.min or int(given.max()) > limits.max:
            raise Refusal(400, f"the data of {name} must lie in [{limits.min}, {limits.max}].")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused later
        return given.astype(dtype)
