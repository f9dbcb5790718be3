"""Randomised inference: transform the input N times, classify each, average the predictions."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from functools import partial, wraps
from types import NoneType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixup_inference.draws import Beta, Draws, Stream, Uniform, make_key
from mixup_inference.errors import MixupInferenceWarning, unknown_name
from mixup_inference.models.call import batch_for, check_model, logits_of, refuse_probabilities
from mixup_inference.models.engines import check_engine, engine_for
from mixup_inference.models.folding import Folded
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_index, check_int

#: Default size of a chunk, in pixels (channels included): 1,024 images of CIFAR's size.
CHUNK_PIXELS = 1024 * 3 * 32 * 32

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The options that every defence takes, all by keyword.

    draws: N, how many random transforms are averaged (30, as in the paper).
    seed: what the draws are made from, together with ``index`` and ``stream``.
    fresh: without ``index``, new draws at every call (True); False freezes them.
    chunk: how many images pass through F at once; by default what 1,024 CIFAR images fill.
    engine: what computes F where no gradient is asked for: "eager" (the model as it is), "folded",
        "bfloat16", "compiled", "onnx", "openvino", or "auto" for the fastest that is the same
        function; see ``make_engine``. Defences around one model share it.
    """

    draws: int
    seed: int
    fresh: bool
    chunk: int | None
    engine: str


def images_at_once(images: Tensor, most: int = 1024) -> int:
    """How many of these images to pass through F at once: what 1,024 CIFAR images fill."""
    return min(most, max(1, CHUNK_PIXELS // images[0].numel()))


def mean_prediction(log_probs: Tensor) -> Tensor:
    """The log of the mean over draws of the probabilities, (..., draws, classes) to (..., classes).

    With log-sum-exp, so that gradients survive where probabilities underflow.
    """
    return torch.logsumexp(log_probs, dim=-2) - math.log(log_probs.shape[-2])


def halve_chunk_on_oom(method: Method) -> Method:
    """Call a defence's method on images; on out-of-memory, halve its chunk size and retry.

    The draws stay the same. Other modules have no chunk size, and the error is raised.
    """

    @wraps(method)
    def retried(defense: Any, x: Tensor, *args: Any, **options: Any) -> Any:
        calls = getattr(defense, "calls", 0)
        while True:
            try:
                return method(defense, x, *args, **options)
            except (RuntimeError, MemoryError) as error:
                ours = isinstance(defense, Defense) and _is_out_of_memory(error)
                if not (ours and defense.halve_chunk(x)):
                    raise
            # Outside of the handler the error is gone, and with it the memory that it held on to.
            defense.calls = calls

    return retried  # type: ignore[return-value]


@halve_chunk_on_oom
def within_memory(defense: nn.Module, x: Tensor, compute: Callable[[], T]) -> T:  # noqa: ARG001
    """Call ``compute``, which depends on a defence's chunk size; see ``halve_chunk_on_oom``."""
    return compute()


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python could not get memory, on a GPU or a CPU."""
    known = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, known) or "can't allocate memory" in str(error)


class Defense(nn.Module):
    """Average F's softmax over N random transforms of the input.

    Returns log(1/N sum_k softmax F(t_k(x))), so that cross-entropy on it is -log of the averaged
    probability, argmax is the prediction, and attack libraries take it as it is. At most
    ``chunk`` images pass through F at once: that bounds memory, with gradients too, and never
    changes what is drawn.

    A call with ``index`` (the samples' positions in their data set) is pure: the draws of a
    sample depend on (seed, stream, its index) and on nothing else. A call without it takes a
    new stream each time (``fresh=True``), or the same draws for every row and every call
    (``fresh=False``), which makes the module a deterministic function of x.

    F always runs in eval mode, and no graph is kept unless ``x.requires_grad``.

    A subclass overrides ``transform``, and ``condition`` if the transform depends on the
    untransformed input; or else both ``forward`` and ``draw``.
    """

    def __init__(self, model: nn.Module, **options: Unpack[Options]) -> None:
        super().__init__()
        for name in set(options) - Options.__optional_keys__:
            raise TypeError(str(unknown_name("option", name, Options.__optional_keys__)))
        chunk = options.get("chunk")
        self.model = check_model(model)
        self.draws = check_int(options.get("draws", 30), what="draws", least=1)
        self.fresh = bool(options.get("fresh", True))
        self.chunk = None if chunk is None else check_int(chunk, what="chunk", least=1)
        self.engine = check_engine(options.get("engine", "eager"))
        self._seen_logits = False
        self.training = False  # made for inference; libraries warn about modules that train
        self.reseed(options.get("seed", 0))

    # What a subclass defines

    def condition(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """What ``transform`` needs to know of each input (mixup inference: the prediction)."""
        return None

    def transform(self, x: Tensor, given: Any, numbers: Draws, /) -> Tensor:
        """The transformed images, shape (samples, draws, C, H, W).

        Args:
            x: some of the inputs, (samples, C, H, W).
            given: their rows of ``condition(x)``.
            numbers: their random numbers, for some of the draws.
        """
        raise NotImplementedError

    # Inference

    @timed(Stage.AVERAGING)
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0) -> Tensor:
        """The log of the averaged prediction, shape (batch, classes)."""
        check_images(x)
        return self.average(x, self.condition(x), self.numbers(x, index, stream))

    @timed(Stage.AVERAGING)
    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: Stream = 0
    ) -> Tensor:
        """Log-probabilities draw by draw, shape (batch, draws, classes): what an attacker averages.

        A defence whose answer is not a mean over draws (MI-Combined) gives one answer made of so
        many draws, shape (batch, 1, classes).
        """
        check_images(x)
        numbers = self.numbers(x, index, stream, draws)
        return self.average(x, self.condition(x), numbers, reduce=None)

    @halve_chunk_on_oom
    def average(
        self,
        x: Tensor,
        given: Any,
        numbers: Draws,
        *,
        reduce: Callable[[Tensor], Tensor] | None = mean_prediction,
    ) -> Tensor:
        """Log mean softmax over these draws, where ``given`` is ``condition(x)``.

        F sees blocks of samples x draws that fit the chunk. ``reduce`` is applied to the
        log-probabilities (samples, draws, classes) of some samples at a time; None keeps all draws.
        """
        chunk = self._chunk_size(x)
        samples, all_k = max(1, chunk // len(numbers.k)), numbers.k.split(chunk)
        out = []
        with _graph_for(x):
            block = _recomputed(self._block, alone=len(x) <= samples and len(all_k) == 1)
            for first in range(0, len(x), samples):
                rows = slice(first, first + samples)
                known = None if given is None else given[rows]
                drawn = torch.cat([block(x[rows], known, numbers.at(rows, k)) for k in all_k], 1)
                out.append(drawn if reduce is None else reduce(drawn))
            joined = torch.cat(out)
            return joined if reduce is None else self.correct(joined, given, numbers)

    def correct(self, log_mean: Tensor, given: Any, numbers: Draws) -> Tensor:  # noqa: ARG002
        """The mean prediction, corrected where a defence has a better estimate."""
        return log_mean

    def numbers(
        self, x: Tensor, index: Tensor | None = None, stream: Stream = 0, draws: int | None = None
    ) -> Draws:
        """The random numbers of a call with these arguments; without ``index``, of a new call."""
        name, index, k = self._stream(x, index, stream, draws)
        return Draws(make_key(self.seed, *name), index, k)

    def predict_proba(
        self, x: Tensor, *, index: Tensor | None = None, stream: Stream = 0
    ) -> Tensor:
        """The averaged softmax prediction, shape (batch, classes)."""
        return torch.exp(self(x, index=index, stream=stream))

    @halve_chunk_on_oom
    def base_log_probs(self, x: Tensor) -> Tensor:
        """Log softmax F(x) on the input itself, in chunks."""
        parts = x.split(self._chunk_size(x))
        with _graph_for(x):
            classify = _recomputed(self._classify, alone=len(parts) == 1)
            return torch.cat([classify(part) for part in parts])

    # Seeds, copies and set-up

    def reseed(self, seed: int) -> None:
        """Start over with the draws of another seed."""
        self.seed = check_int(seed, what="seed", least=0)
        self._calls = [0]  # in a list, which copies around another model share

    @property
    def calls(self) -> int:
        """The number of calls without ``index`` so far: each has draws of its own."""
        return self._calls[0]

    @calls.setter
    def calls(self, count: int) -> None:
        self._calls[0] = count

    @property
    def passes_once(self) -> int:
        """The number of forward passes that set-up takes, once for all calls."""
        return 0

    def prepare(self) -> int:
        """Run one-off set-up; return the number of forward passes it took."""
        return 0

    def frozen(self) -> Self:
        """The same defence with its randomness removed: the same draws for every row and call."""
        twin = copy.copy(self)
        twin.fresh = False
        return twin

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one.

        A subclass with a ``draw`` of its own may hold the model elsewhere too, and stays as it is.
        """
        return self if type(self).transform is Defense.transform else self._around(model)

    def _around(self, model: nn.Module) -> Self:
        """A shallow copy with another model; a folded one needs no other engine."""
        twin = copy.copy(self)
        if isinstance(model, Folded):
            twin.engine = "eager"
        twin._modules = self._modules | {"model": model}
        return twin

    def extra_repr(self) -> str:
        """The settings, as they were given or by default."""
        names = dict.fromkeys([*inspect.signature(type(self)).parameters, "draws", "seed"])
        values = {name: getattr(self, name) for name in names if hasattr(self, name)}
        plain = (str, int, float, tuple, Uniform, Beta, NoneType)
        return ", ".join(
            f"{name}={value!r}" if isinstance(value, plain) else f"{name}={type(value).__name__}"
            for name, value in values.items()
            if not isinstance(value, nn.Module)
        )

    # How it is computed

    def _stream(
        self, x: Tensor, index: Tensor | None, stream: Stream, draws: int | None
    ) -> tuple[tuple[Stream, ...], Tensor, Tensor]:
        """The name of a call's stream, the sample positions in it, and the numbers of the draws."""
        count = self.draws if draws is None else check_int(draws, what="draws", least=1)
        k = torch.arange(count, device=x.device)
        if index is not None:
            return ("index", stream), check_index(index, count=x.shape[0], device=x.device), k
        if not self.fresh:
            return ("frozen",), torch.zeros(len(x), dtype=torch.int64, device=x.device), k
        self.calls += 1
        return ("call", self.calls), torch.arange(len(x), device=x.device), k

    def _block(self, x: Tensor, given: Tensor | None, numbers: Draws) -> Tensor:
        """Log-probabilities of some draws of some samples, shape (samples, draws, classes)."""
        with timed(Stage.MIXING):
            images = self.transform(x, given, numbers)
        return self._classify(images.flatten(0, 1)).view(*images.shape[:2], -1)

    def _classify(self, x: Tensor) -> Tensor:
        """Log softmax F(x); the first batch ever seen is checked for being logits."""
        wants_graph = torch.is_grad_enabled() and x.requires_grad
        if self.engine == "eager" or wants_graph:
            parts = x.split(batch_for(x, self.model))
            logits = torch.cat([logits_of(self.model, part) for part in parts])
        else:
            run = engine_for(self.engine, self.model, x)
            with timed(Stage.FORWARD, images=len(x)):
                logits = run(x)
            for hook in self.model._forward_hooks.values():  # those that count passes, for instance
                hook(self.model, (x,), logits)
        if not self._seen_logits:
            refuse_probabilities(logits)
            self._seen_logits = True
        return torch.log_softmax(logits, dim=1)

    def _chunk_size(self, x: Tensor) -> int:
        """How many images go through F at once."""
        return images_at_once(x) if self.chunk is None else self.chunk

    def halve_chunk(self, x: Tensor) -> bool:
        """Halve the chunk size from now on; return whether that was possible."""
        now = self._chunk_size(x)
        if now == 1:
            return False
        self.chunk = now // 2
        warnings.warn(
            f"memory ran out with chunks of {now:,} images; going on with {self.chunk:,} and the "
            f"same draws. Give chunk={self.chunk} to start there.",
            MixupInferenceWarning,
            stacklevel=2,
        )
        return True


def _graph_for(x: Tensor) -> torch.set_grad_enabled:
    """Build a graph only when gradients with respect to x are asked for."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad)


def _recomputed(function: Callable[..., Tensor], *, alone: bool) -> Callable[..., Tensor]:
    """A function of one chunk that, where a graph is built, is recomputed in the backward pass.

    So the activations of one chunk at a time are in memory, in the backward pass too. A chunk
    that is alone is not recomputed: nothing would be saved.
    """
    if alone or not torch.is_grad_enabled():
        return function
    return partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
