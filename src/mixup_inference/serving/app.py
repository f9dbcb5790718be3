"""The web application: routes, and what every request passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI, Request
from kserve.errors import ModelNotFound, ModelNotReady, ServerNotReady
from kserve.protocol.rest import v2_datamodels as types
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from mixup_inference import __version__
from mixup_inference.serving.bodies import Bodies, unless_gone
from mixup_inference.serving.limits import Refusal, Token
from mixup_inference.serving.middleware import Authorized, Counted
from mixup_inference.serving.page import page
from mixup_inference.serving.pictures import Decoder, file_of
from mixup_inference.serving.protocol import Front, Plane, write_response
from mixup_inference.serving.schema import (
    BINARY,
    DESCRIPTION,
    PICTURE_REQUEST,
    TENSOR_REQUEST,
    Classified,
    describe,
    problems,
)
from mixup_inference.serving.service import NOTE, Service
from mixup_inference.serving.tensors import JSON_LENGTH, read_request


def make_app(service: Service, token: str | None = None) -> FastAPI:
    """The application around a service, which it starts and closes."""
    bodies = Bodies(service.limits)
    decoder = Decoder(service.limits)
    front = Front(service)
    plane = Plane(front)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()
        decoder.close()

    async def infer(request: Request, model_name: str) -> Response:
        if model_name != service.name:
            raise ModelNotFound(f"{model_name!r:.40}")
        _ = service.guard  # loaded?
        async with bodies.read(request) as body:
            tensors = read_request(body, request.headers.get(JSON_LENGTH), model_name)
            content, headers = write_response(await unless_gone(request, front.predict(tensors)))
        return Response(content, headers=headers)

    async def classify(request: Request) -> JSONResponse:
        seeds = _seed_of(request)
        shape, names = service.shape, service.class_names
        async with bodies.read(request) as body:
            image = await decoder.decode(await file_of(request, body), shape)
        answer = await unless_gone(request, service.answer(image, seeds))
        values = answer.probabilities[0].tolist()
        found = Classified(
            label=names[int(answer.label)],
            probability=max(values),
            undefended_label=names[int(answer.undefended_label)],
            score=float(answer.score),
            is_adversarial=bool(answer.is_adversarial),
            draws=int(answer.draws),
            probabilities=dict(zip(names, values, strict=True)),
        )
        return JSONResponse(found.model_dump())

    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    app = FastAPI(
        title="mixup-inference guard",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads from elsewhere
        redoc_url=None,
    )
    _add_protocol(app, V2Endpoints(plane), infer)
    app.add_api_route(
        "/classify", classify, methods=["POST"], tags=["pictures"], summary="Classify a picture",
        description=f"A picture as the body, or as the file of a form. {NOTE}",
        responses={200: {"model": Classified}, **problems(400, 401, 408, 413, 429, 500, 503)},
        openapi_extra=PICTURE_REQUEST,
    )  # fmt: skip
    app.add_api_route(
        "/metrics", metrics, tags=["server"], summary="Metrics for Prometheus",
        response_class=Response, responses={200: {"content": {"text/plain": {}}}, **problems(401)},
    )  # fmt: skip
    app.add_api_route("/docs", docs, include_in_schema=False)
    for kind in (HTTPException, Refusal, ModelNotFound, ModelNotReady, ServerNotReady):
        app.add_exception_handler(kind, _refuse)
    app.add_middleware(Authorized, token=Token(token))
    app.add_middleware(Counted, metrics=service.metrics)
    app.openapi = lambda: describe(app, service.name)
    return app


def _add_protocol(app: FastAPI, v2: V2Endpoints, infer: Any) -> None:
    """The Open Inference Protocol: kserve's endpoints, without those that load and unload."""
    gets = (
        ("", v2.metadata, types.ServerMetadataResponse, "The server", ()),
        ("/health/live", v2.live, types.ServerLiveResponse, "Whether it lives", ()),
        ("/health/ready", v2.ready, types.ServerReadyResponse, "Whether it can answer", (503,)),
        ("/models", v2.models, types.ListModelsResponse, "The guard's name", ()),
        ("/models/{model_name}", _model_metadata(v2), types.ModelMetadataResponse,
         "Inputs and outputs", (404, 503)),
        ("/models/{model_name}/ready", _model_ready(v2), types.ModelReadyResponse,
         "Whether the guard has loaded", (404, 503)),
    )  # fmt: skip
    for path, endpoint, model, summary, statuses in gets:
        app.add_api_route(
            f"/v2{path}", endpoint, response_model=model, tags=["Open Inference Protocol"],
            summary=summary, responses=problems(401, *statuses), description=summary + ".",
        )  # fmt: skip
    app.add_api_route(
        "/v2/models/{model_name}/infer", infer, methods=["POST"], summary="Classify images",
        tags=["Open Inference Protocol"],
        description="Tensors in JSON, or in binary behind the JSON, whose length the header "
        f"Inference-Header-Content-Length says. {NOTE}",
        responses={
            200: {"model": types.InferenceResponse, "description": NOTE,
                  "content": {"application/octet-stream": {"schema": BINARY}}},
            **problems(400, 401, 404, 408, 413, 429, 500, 503),
        },
        openapi_extra=TENSOR_REQUEST,
    )  # fmt: skip


def _model_metadata(v2: V2Endpoints) -> Any:
    async def model_metadata(model_name: str) -> Any:
        return await v2.model_metadata(model_name)

    return model_metadata


def _model_ready(v2: V2Endpoints) -> Any:
    async def model_ready(model_name: str) -> Any:
        return await v2.model_ready(model_name)

    return model_ready


def _seed_of(request: Request) -> torch.Tensor | None:
    text = request.query_params.get("seed")
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise Refusal(400, "seed must be a whole number of 64 bits.")
    if not -(2**63) <= (seed := int(text)) < 2**63:
        raise Refusal(400, "seed must be a whole number of 64 bits.")
    return torch.tensor([seed])


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    """Every error as a status and a sentence."""
    if isinstance(error, Refusal):
        return JSONResponse({"error": error.sentence}, error.status, error.headers)
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    status = 404 if isinstance(error, ModelNotFound) else 503
    return JSONResponse({"error": str(error)}, status)
