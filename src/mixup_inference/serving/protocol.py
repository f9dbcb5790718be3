"""The Open Inference Protocol, version 2, over REST: a guard as kserve sees it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import orjson
import torch
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.protocol.dataplane import DataPlane

from mixup_inference import __version__
from mixup_inference.guard import Answer
from mixup_inference.serving.limits import Refusal
from mixup_inference.serving.service import Service
from mixup_inference.serving.tensors import IMAGES, JSON_LENGTH, SEED

OUTPUT_TYPES = {
    "label": "INT64",
    "probabilities": "FP32",
    "undefended_label": "INT64",
    "score": "FP32",
    "is_adversarial": "BOOL",
    "draws": "INT64",
}
NUMPY = {"INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_}


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


def write_response(response: InferResponse) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers."""
    content, json_length = response.to_rest()
    if json_length is None:
        return orjson.dumps(content), {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(json_length)}
    return content, headers


def _output(answer: Answer, name: str) -> InferOutput:
    kind, values = OUTPUT_TYPES[name], getattr(answer, name)
    array = values.detach().cpu().numpy().astype(NUMPY[kind])
    return InferOutput(name, list(array.shape), kind, array)
