"""Engines compute the same log-probabilities as the model itself, and stand in for it in MI."""

from __future__ import annotations

import copy
import gc
import importlib.util
import pickle
import subprocess
import sys
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from mixup_inference import CombinedInference, GaussianNoise, InputError, MixupInference, evaluate
from mixup_inference.models import engines, onnx_network
from mixup_inference.models.engines import make_engine
from mixup_inference.models.folding import ROUNDED, TOLERANCE

NEEDS = {"onnx": ("onnxruntime", "onnxscript"), "openvino": ("openvino",)}


def engine(name, *marks):
    missing = [lib for lib in NEEDS.get(name, ()) if importlib.util.find_spec(lib) is None]
    skip = pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")
    return pytest.param(name, marks=[skip, *marks])


EVERY = [
    engine("eager"),
    engine("folded"),
    engine("auto"),
    engine("onnx"),
    engine("openvino"),
    engine("compiled", pytest.mark.slow),
]


@pytest.mark.parametrize("name", EVERY)
def test_log_probabilities_and_labels_are_the_models(trained, parts, name):
    x = parts["test"].pixels[:60]
    run = make_engine(name, trained, x[:20])
    with torch.no_grad():
        for some in (x, x[:1], x[:33]):  # any number of images
            expected = torch.log_softmax(trained(some), 1)
            found = torch.log_softmax(run(some), 1)
            assert float((found - expected).abs().max()) <= TOLERANCE
            first, second = expected.topk(2, 1).values.unbind(1)
            clear = first - second > TOLERANCE
            assert torch.equal(found.argmax(1)[clear], expected.argmax(1)[clear])
            assert bool(clear.any())


@pytest.mark.parametrize("name", EVERY)
def test_defences_answer_and_count_the_same(trained, pool, parts, name):
    x, y = parts["test"].pixels[:40], parts["test"].labels[:40]
    for make in (
        lambda **o: MixupInference(trained, pool, draws=5, **o),
        lambda **o: CombinedInference(trained, pool, draws=5, threshold=0.0, **o),
        lambda **o: GaussianNoise(trained, sigma=0.1, draws=5, **o),
    ):
        plain, other = make(), make(engine=name)
        index = torch.arange(40)
        torch.testing.assert_close(
            other(x, index=index), plain(x, index=index), rtol=0, atol=5 * TOLERANCE
        )
        assert evaluate(make(engine=name), x, y).passes == evaluate(plain, x, y).passes
        leaf = x.clone().requires_grad_()
        assert torch.autograd.grad(other(leaf).sum(), leaf)[0].shape == x.shape


def test_an_engine_is_made_once_and_again_when_the_model_changes(trained, pool, parts, monkeypatch):
    made = []
    original = engines.ENGINES["folded"]
    monkeypatch.setitem(engines.ENGINES, "folded", lambda m, x: made.append(1) or original(m, x))
    model, x = copy.deepcopy(trained), parts["test"].pixels[:10]
    mi = MixupInference(model, pool, draws=3, engine="folded", fresh=False)
    mi(x)
    mi(x)
    assert len(made) == 1
    with torch.no_grad():
        model.classifier.bias[0] += 50
    assert bool((mi(x).argmax(1) == 0).all())
    assert len(made) == 2
    for twin in (copy.deepcopy(mi), pickle.loads(pickle.dumps(mi))):  # noqa: S301
        torch.testing.assert_close(twin(x), mi(x))


def test_defences_around_one_model_share_their_engine(trained, pool, parts, monkeypatch):
    made = []
    original = engines.ENGINES["folded"]
    monkeypatch.setitem(engines.ENGINES, "folded", lambda m, x: made.append(1) or original(m, x))
    model, x = copy.deepcopy(trained), parts["test"].pixels[:10]
    for lam in (0.5, 0.6):
        MixupInference(model, pool, lam=lam, draws=3, engine="folded")(x)
    GaussianNoise(model, sigma=0.1, draws=3, engine="folded")(x)
    assert len(made) == 1
    GaussianNoise(copy.deepcopy(model), sigma=0.1, draws=3, engine="folded")(x)
    assert len(made) == 2
    GaussianNoise(model, sigma=0.1, draws=3, engine="folded")(parts["test"].pixels[:10, :, 1:])
    assert len(made) == 3  # images of another size


@pytest.mark.parametrize("name", [engine("eager"), engine("folded"), engine("auto")])
def test_an_engine_does_not_keep_its_model_alive(trained, parts, name):
    model = copy.deepcopy(trained)
    engines.engine_for(name, model, parts["test"].pixels[:10])
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("name", [engine("onnx"), engine("openvino")])
def test_exporters_say_nothing(name):
    code = (
        "import torch; from mixup_inference import create_model; "
        "from mixup_inference.models.engines import make_engine; "
        f"make_engine({name!r}, create_model('small_cnn', 10, channels=1), torch.rand(4, 1, 8, 8))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_one_that_is_another_function_is_refused(trained, parts, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "folded", lambda m, _: lambda x: 1.01 * m(x))
    with pytest.raises(InputError, match="differs from the model"):
        make_engine("folded", trained, parts["test"].pixels[:10])
    monkeypatch.setitem(engines.ENGINES, "onnx", lambda m, _: lambda x: m(x) * torch.nan)
    with pytest.raises(InputError, match="differs from the model"):
        make_engine("onnx", trained, parts["test"].pixels[:10])
    make_engine("auto", trained, parts["test"].pixels[:10])  # has others


def test_bfloat16_rounds_and_is_refused_where_that_shows(trained, pool, parts):
    x = parts["test"].pixels[:60]
    run = make_engine("bfloat16", trained, x)
    with torch.no_grad():
        expected, found = trained(x).softmax(1), run(x).softmax(1)
        coarse = make_engine("folded", copy.deepcopy(trained).bfloat16().float(), x)(x).softmax(1)
    assert found.dtype == x.dtype
    assert TOLERANCE < float((found - expected).abs().max()) <= ROUNDED  # it does round
    assert not torch.equal(found, coarse)  # not the weights alone
    first, second = expected.topk(2, 1).values.unbind(1)
    clear = first - second > 2 * ROUNDED
    assert torch.equal(found.argmax(1)[clear], expected.argmax(1)[clear])
    mi = MixupInference(trained, pool, draws=5, engine="bfloat16")
    exact = MixupInference(trained, pool, draws=5)
    leaf, index = x.clone().requires_grad_(), torch.arange(60)
    torch.testing.assert_close(mi(leaf, index=index), exact(x, index=index))  # gradients are exact

    class Steep(nn.Module):
        def forward(self, x):
            return 10 * torch.sin(1000 * trained(x))

    with pytest.raises(InputError, match=r"in a probability \(allowed: 0.1\)"):
        make_engine("bfloat16", Steep().eval(), x)


def test_mistakes(trained, pool, monkeypatch):
    with pytest.raises(InputError, match="did you mean 'folded'"):
        MixupInference(trained, pool, engine="foldet")
    monkeypatch.setattr(
        onnx_network.importlib,
        "import_module",
        lambda name: (_ for _ in ()).throw(ImportError(name)),
    )
    with pytest.raises(InputError, match=r"pip install mixup-inference\[engines\]"):
        make_engine("openvino", trained, torch.rand(2, 1, 8, 8))


def test_models_that_carry_their_logits():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    class Carrying(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(1, 3, 3)

        def forward(self, x):
            return Output(self.layer(x).mean((2, 3)))

    model = Carrying().eval()
    x = torch.rand(4, 1, 5, 5)
    torch.testing.assert_close(make_engine("folded", model, x)(x), model(x).logits)


def test_a_compiled_engine_is_one_graph(trained, parts, monkeypatch):
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    run = make_engine("compiled", trained, parts["test"].pixels[:40])
    with torch.no_grad():
        run(parts["test"].pixels[:40])
    assert len(graphs) == 1
