"""The Open Inference Protocol, version 2, over REST: tensors in JSON or in binary.

The types and the metadata are kserve's. Requests are read here, because kserve's reader takes what
is malformed for a fault of the server, and makes Python numbers of binary tensors.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import uuid4

import numpy as np
import orjson
import torch
from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.v2_datamodels import InferenceRequest, RequestInput
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor

from mixup_inference import __version__
from mixup_inference.guard import Answer
from mixup_inference.serving.limits import Refusal
from mixup_inference.serving.service import Service

Array = np.ndarray[Any, Any]

#: How many bytes of a binary request, or answer, are its JSON.
JSON_LENGTH = "inference-header-content-length"
IMAGES, SEED = "images", "seed"
INPUT_TYPES = {IMAGES: ("FP32", "UINT8"), SEED: ("INT64",)}
OUTPUT_TYPES = {
    "label": "INT64",
    "probabilities": "FP32",
    "undefended_label": "INT64",
    "score": "FP32",
    "is_adversarial": "BOOL",
    "draws": "INT64",
}
DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "UINT8": np.dtype("u1"),
    "INT64": np.dtype("<i8"),
}
NUMPY = {"INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_}


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


class Front(Model):
    """A guard as kserve sees it: metadata, and requests to answers."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.name)
        self.service = service

    async def healthy(self) -> bool:
        """Whether it has loaded."""
        return self.service.ready

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs; images may also be UINT8, from 0 to 255."""
        shape = [-1, *self.service.shape]
        inputs = [{"name": IMAGES, "datatype": "FP32", "shape": shape}]
        if self.service.limits.allow_seeds:
            inputs.append({"name": SEED, "datatype": "INT64", "shape": [-1]})
        return inputs

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, one row an image."""
        more = {"probabilities": [len(self.service.class_names)]}
        return [
            {"name": name, "datatype": kind, "shape": [-1, *more.get(name, [])]}
            for name, kind in OUTPUT_TYPES.items()
        ]

    async def predict(
        self,
        payload: InferRequest,
        headers: Any = None,  # noqa: ARG002 (kserve's signature)
        response_headers: Any = None,  # noqa: ARG002
    ) -> InferResponse:
        """Answer a request that ``read_request`` has read."""
        wanted = payload.request_outputs
        for output in wanted or ():
            if output.name not in OUTPUT_TYPES:
                raise Refusal(
                    400,
                    f"there is no output {output.name!r:.40}; known: {', '.join(OUTPUT_TYPES)}.",
                )
        found = {tensor.name: torch.from_numpy(tensor.as_numpy()) for tensor in payload.inputs}
        if IMAGES not in found:
            raise Refusal(400, f"the request has no input {IMAGES!r}.")
        answer = await self.service.answer(found[IMAGES], found.get(SEED))
        return InferResponse(
            response_id=payload.id or str(uuid4()),
            model_name=self.name,
            infer_outputs=[_output(answer, name) for name in OUTPUT_TYPES],
            requested_outputs=wanted,
            use_binary_outputs=payload.use_binary_outputs,
        )


class Plane(DataPlane):
    """What kserve's endpoints ask about the server and its one model."""

    def __init__(self, front: Front) -> None:
        repository = ModelRepository()
        repository.update(front)
        super().__init__(repository)
        self.front = front

    def metadata(self) -> dict[str, Any]:
        """The server's name and version; models cannot be loaded or unloaded."""
        return {
            "name": "mixup-inference",
            "version": __version__,
            "extensions": ["binary_tensor_data"],
        }

    async def ready(self) -> bool:
        """Whether the guard has loaded."""
        return await self.front.healthy()


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


def write_response(response: InferResponse) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers."""
    content, json_length = response.to_rest()
    if json_length is None:
        return orjson.dumps(content), {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(json_length)}
    return content, headers


def _output(answer: Answer, name: str) -> InferOutput:
    kind, values = OUTPUT_TYPES[name], getattr(answer, name)
    array: Array = _numpy(values).astype(NUMPY[kind])
    return InferOutput(name, list(array.shape), kind, array)


def _numpy(values: Tensor) -> Array:
    out: Array = values.detach().cpu().numpy()
    return out
