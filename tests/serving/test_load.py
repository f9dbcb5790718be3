"""What takes minutes: 10,000 requests from 64 connections; fuzzing by the OpenAPI document."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

from mixup_inference.guard import Guard
from serving.running import Process, document, run

pytestmark = pytest.mark.slow

REQUESTS, CONNECTIONS, WARM = 10_000, 64, 5_000
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
NAMES = ("label", "probabilities", "undefended_label", "score", "is_adversarial", "draws")


async def ask(client, x, seed):
    """One image with its seed; each output as an array."""
    inputs = [
        triton.InferInput("images", [1, *x.shape], "UINT8"),
        triton.InferInput("seed", [1], "INT64"),
    ]
    inputs[0].set_data_from_numpy(x[None])
    inputs[1].set_data_from_numpy(np.array([seed]))
    found = await client.infer("guard", inputs)
    return {name: found.as_numpy(name)[0] for name in NAMES}


async def ask_all(url, images, seeds):
    """The answers to all, in order, from as many connections as there are."""
    answers = [None] * len(images)
    rows = iter(range(len(images)))
    async with triton_aio.InferenceServerClient(url, conn_limit=CONNECTIONS) as client:

        async def go_on():
            for row in rows:
                answers[row] = await ask(client, images[row], seeds[row])

        await asyncio.gather(*(go_on() for _ in range(CONNECTIONS)))
    return answers


@pytest.mark.timeout(3600)
def test_ten_thousand_requests_are_all_answered_rightly_in_flat_memory(folder, digits):
    generator = torch.Generator().manual_seed(4)
    rows = torch.randint(len(digits), (REQUESTS,), generator=generator)
    seeds = torch.randint(-(2**62), 2**62, (REQUESTS,), generator=generator)
    images = digits[rows]
    with Process(folder, "--allow-seeds", "--quiet") as server:
        arrays = images.numpy()
        asyncio.run(ask_all(server.url, arrays[:WARM], seeds[:WARM].tolist()))
        before, start = server.metric("process_resident_memory_bytes"), time.monotonic()
        answers = asyncio.run(ask_all(server.url, arrays, seeds.tolist()))
        seconds, after = time.monotonic() - start, server.metric("process_resident_memory_bytes")
        batches = server.metric("guard_batch_rows_count")
        print(  # noqa: T201 (with pytest -s)
            f"{REQUESTS / seconds:.0f} requests/s, {(WARM + REQUESTS) / batches:.1f} rows a batch, "
            f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after"
        )
        assert server.metric("guard_images_total") == WARM + REQUESTS
    assert after - before < 30e6
    guard = Guard.load(folder)
    for part in torch.arange(REQUESTS).split(500):
        offline = guard.predict(images[part], seeds=seeds[part])
        for name in NAMES:
            found = np.stack([answers[row][name] for row in part])
            assert found == pytest.approx(getattr(offline, name).numpy(), abs=1e-5), name


def test_no_request_that_schemathesis_thinks_of_is_a_fault_of_the_server(guard, images):
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
        unsupported_method,
    )

    checks = [
        not_a_server_error, content_type_conformance, response_schema_conformance,
        status_code_conformance, unsupported_method,
    ]  # fmt: skip
    with run(lambda: guard, allow_seeds=True, timeout=60) as server:
        url = f"http://{server.until_ready().url}"
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) == 9
        seen = set()
        modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
        for operation in operations:
            takes = operation.body or operation.query or operation.path_parameters
            for mode in modes if takes else modes[:1]:

                @settings(
                    max_examples=EXAMPLES if takes else 3, deadline=None, database=None,
                    suppress_health_check=list(HealthCheck),
                )  # fmt: skip
                @given(case=operation.as_strategy(generation_mode=mode))
                def attempt(case):
                    response = case.call(base_url=url)
                    seen.add((case.method, case.path, response.status_code))
                    case.validate_response(response, checks=checks)

                with suppress(Unsatisfiable):  # any text is a name: nothing breaks that schema
                    attempt()
        assert {("POST", "/classify", 200), ("POST", "/classify", 400)} <= seen
        infer = "/v2/models/{model_name}/infer"
        names = {"model_name": "guard"}
        for more in ({}, {"id": "7"}, {"outputs": [{"name": "is_adversarial"}]}):
            case = schema[infer]["POST"].Case(
                path_parameters=names, body=document(images, **more), media_type="application/json"
            )
            response = case.call(base_url=url)
            assert response.status_code == 200
            case.validate_response(response, checks=checks)
        assert {("POST", infer, 400), ("POST", infer, 404)} <= seen
        assert server.service.ready
    print(sorted(seen))  # noqa: T201
