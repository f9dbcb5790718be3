"""Inference engines: compute F without gradients, by torch or by something faster.

Every engine is compared with the model itself before it is used. All but "bfloat16" are the same
function up to float32's rounding; that one rounds to 8 bits on the way, and is 1.6 to 1.8 times as
fast as "folded" on processors that compute in bfloat16 (on others it may be far slower).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import repeat
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from mixup_inference.errors import InputError
from mixup_inference.models.call import eval_mode, state_of, unwrap
from mixup_inference.models.folding import allowed, bare, deviation, fold
from mixup_inference.models.onnx_network import (
    OnnxNetwork,
    export_network,
    library,
    pair,
    quiet_export,
)
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_choice

Run = Callable[[Tensor], Tensor]

#: For each model that is alive, its engines and its state when they were made.
_MADE: WeakKeyDictionary[nn.Module, dict[Any, tuple[Any, Run]]] = WeakKeyDictionary()


def check_engine(name: str) -> str:
    """Check the name of an engine."""
    return check_choice(name, what="engine", known=(*ENGINES, "auto"))


def engine_for(name: str, model: nn.Module, x: Tensor) -> Run:
    """Return the cached engine for a model and images of this shape, made by ``make_engine``.

    It is made again when the model's weights or statistics have changed.
    """
    made = _MADE.setdefault(model, {})
    key = name, x.shape[1:], x.dtype, x.device, torch.get_num_threads()
    state = state_of(model)
    if key not in made or made[key][0] != state:
        made[key] = state, make_engine(name, model, x)
    return made[key][1]


@timed(Stage.COPYING)
def make_engine(name: str, model: nn.Module, x: Tensor) -> Run:
    """Make an engine by name and check it on the images x; "auto" takes the fastest on them.

    "auto" leaves out "compiled", which takes longer to set up than most evaluations last, and
    "bfloat16", which is not quite the same function.
    """
    if check_engine(name) == "auto":
        return _fastest(model, x)
    run, rounds = ENGINES[name](model, x), name == "bfloat16"
    difference, most = deviation(model, run, x, rounds=rounds), allowed(rounds=rounds)
    if not difference <= most:
        what = "probability" if rounds else "log-probability"
        raise InputError(
            f"the engine {name!r} differs from the model by {difference:.2g} in a {what} "
            f"(allowed: {most:g}); use another engine."
        )
    return run


def _fastest(model: nn.Module, x: Tensor) -> Run:
    candidates: list[Run] = []
    for name in ENGINES.keys() - {"compiled", "bfloat16"}:
        try:
            candidates.append(make_engine(name, model, x))
        except InputError:  # not installed, or not the same function
            continue
    with torch.no_grad():
        return min(candidates, key=lambda run: min(repeat(partial(run, x), repeat=3, number=1)))


def _eager(model: nn.Module, _: Tensor) -> Run:
    itself = ref(model)  # weak, so that the cached engine does not keep its model alive

    def run(x: Tensor) -> Tensor:
        model = itself()
        assert model is not None
        return _forward(model, x)

    return run


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    with eval_mode(model):
        out: Tensor = unwrap(model.forward(x))  # without hooks, which are the caller's
    return out


def _compiled(model: nn.Module, _: Tensor) -> Run:
    inner: nn.Module = fold(model).model
    twin = torch.compile(inner)

    def run(x: Tensor) -> Tensor:
        out: Tensor = unwrap(twin(x.contiguous(memory_format=torch.channels_last)))
        return out

    return run


def _onnx(model: nn.Module, x: Tensor) -> Run:
    return OnnxNetwork(export_network(bare(model), x))


def _openvino(model: nn.Module, x: Tensor) -> Run:
    openvino = library("openvino")
    with quiet_export():
        program = openvino.convert_model(bare(model), example_input=pair(x))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # otherwise several processes share one core
    }
    compiled = openvino.compile_model(program, "CPU", settings)

    def run(x: Tensor) -> Tensor:
        out = compiled(x.contiguous().cpu().numpy())[0]
        return torch.from_numpy(out.copy()).to(x)

    return run


ENGINES: dict[str, Callable[[nn.Module, Tensor], Run]] = {
    "eager": _eager,
    "folded": lambda model, _: partial(_forward, fold(model)),
    "bfloat16": lambda model, _: partial(_forward, fold(model, rounds=True)),
    "compiled": _compiled,
    "onnx": _onnx,
    "openvino": _openvino,
}
