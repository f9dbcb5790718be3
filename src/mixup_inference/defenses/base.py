"""Randomised inference: transform the input N times, classify each, average the predictions."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixup_inference.draws import Draws, make_key
from mixup_inference.errors import MixupInferenceWarning, unknown_name
from mixup_inference.models.call import batch_for, check_model, logits_of, refuse_probabilities
from mixup_inference.models.engines import check_engine, engine_for
from mixup_inference.models.folding import Folded
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_images, check_index, check_int

#: Default size of a chunk, in pixels (channels included): 1,024 images of CIFAR's size.
CHUNK_PIXELS = 1024 * 3 * 32 * 32

Stream = tuple[str | int, ...]
T = TypeVar("T")


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


class StochasticModule(nn.Module, ABC):
    """What all defences share: the base model F, a seed, and which draws a call gets.

    A call with ``index`` (the samples' positions in their data set) is pure: the draws of a
    sample depend on (seed, stream, its index) and on nothing else. A call without it takes a
    new stream each time (``fresh=True``), or the same draws for every row and every call
    (``fresh=False``), which makes the module a deterministic function of x.

    F runs in eval mode always, and no graph is kept unless ``x.requires_grad``.
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

    def reseed(self, seed: int) -> None:
        """Start over with the draws of another seed."""
        self.seed = check_int(seed, what="seed", least=0)
        self._calls = [0]  # in a list, which copies around another model share

    @property
    def calls(self) -> int:
        """How many calls without ``index`` there were: each has draws of its own."""
        return self._calls[0]

    @calls.setter
    def calls(self, count: int) -> None:
        self._calls[0] = count

    @property
    def passes_once(self) -> int:
        """How many images pass through F to prepare the defence, once for all calls."""
        return 0

    def prepare(self) -> int:
        """Do what is done once and not for each call; how many images passed through F for it."""
        return 0

    @abstractmethod
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the prediction, shape (batch, classes)."""

    @abstractmethod
    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """Log-probabilities draw by draw, shape (batch, draws, classes): what an attacker averages.

        A defence whose answer is not a mean over draws (MI-Combined) gives one answer made of so
        many draws, shape (batch, 1, classes).
        """

    def frozen(self) -> Self:
        """The same defence with its randomness removed: the same draws for every row and call."""
        twin = copy.copy(self)
        twin.fresh = False
        return twin

    def with_model(self, model: nn.Module) -> Self:  # noqa: ARG002
        """The same defence around another copy of the same model, such as a faster one.

        Itself, where a subclass does not say how.
        """
        return self

    def _around(self, model: nn.Module) -> Self:
        """A shallow copy with another model; a folded one needs no other engine."""
        twin = copy.copy(self)
        if isinstance(model, Folded):
            twin.engine = "eager"
        twin._modules = self._modules | {"model": model}
        return twin

    def predict_proba(
        self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """The averaged softmax prediction, shape (batch, classes)."""
        return torch.exp(self(x, index=index, stream=stream))

    def base_log_probs(self, x: Tensor) -> Tensor:
        """Log softmax F(x) on the input itself, in chunks."""

        def compute() -> Tensor:
            parts = x.split(self._chunk_size(x))
            return torch.cat(
                [_bounded(self._classify, part, alone=len(parts) == 1) for part in parts]
            )

        with _graph_for(x):
            return within_memory(self, x, compute)

    def samples_of(
        self, x: Tensor, index: Tensor | None, stream: str | int
    ) -> tuple[Stream, Tensor]:
        """Which stream and which sample positions this call draws from."""
        if index is not None:
            return ("index", stream), check_index(index, count=x.shape[0], device=x.device)
        if not self.fresh:
            return ("frozen",), torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        self.calls += 1
        return ("call", self.calls), torch.arange(x.shape[0], device=x.device)

    def _chunk_size(self, x: Tensor) -> int:
        """How many images go through F at once."""
        if self.chunk is not None:
            return self.chunk
        return images_at_once(x)

    def halve_chunk(self, x: Tensor) -> bool:
        """From now on half as many images at once; whether that was possible."""
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

    def _classify(self, x: Tensor) -> Tensor:
        """Log softmax F(x); the first batch ever seen is checked for being logits."""
        wants_graph = torch.is_grad_enabled() and x.requires_grad
        if self.engine == "eager" or wants_graph:
            parts = x.split(batch_for(x, self.model))
            logits = torch.cat([logits_of(self.model, part) for part in parts])
        else:
            logits = self._run_engine(x)
        if not self._seen_logits:
            refuse_probabilities(logits)
            self._seen_logits = True
        return torch.log_softmax(logits, dim=1)

    def _run_engine(self, x: Tensor) -> Tensor:
        run = engine_for(self.engine, self.model, x)
        with timed(Stage.FORWARD, images=len(x)):
            logits = run(x)
        for hook in self.model._forward_hooks.values():  # those that count passes, for instance
            hook(self.model, (x,), logits)
        return logits


def within_memory(defense: nn.Module, x: Tensor, compute: Callable[[], T]) -> T:
    """What ``compute`` returns; where memory runs out, again with half of the defence's chunk.

    The draws are the same. A module that is not a defence of ours has no chunk, and the error is
    raised.
    """
    if not isinstance(defense, StochasticModule):
        return compute()
    calls = defense.calls
    while True:
        try:
            return compute()
        except (RuntimeError, MemoryError) as error:
            if not (_is_out_of_memory(error) and defense.halve_chunk(x)):
                raise
        # Out of the handler the error is gone, and with it the memory that it held on to.
        defense.calls = calls


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python could not get memory, on a GPU or a CPU."""
    known = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, known) or "can't allocate memory" in str(error)


def _graph_for(x: Tensor) -> torch.set_grad_enabled:
    """Build a graph only when gradients with respect to x are asked for."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad)


def _bounded(function: Callable[..., Tensor], *args: Tensor | None, alone: bool) -> Tensor:
    """Call a function of one chunk; when a graph is built, recompute it in the backward pass.

    So the activations of one chunk at a time are in memory, in the backward pass too. A chunk
    that is alone is not recomputed: nothing would be saved.
    """
    if alone or not torch.is_grad_enabled():
        return function(*args)
    out: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return out


class RandomizedInference(StochasticModule):
    """Average F's softmax over N random transforms of the input.

    Returns log(1/N sum_k softmax F(t_k(x))), so that cross-entropy on it is -log of the averaged
    probability, argmax is the prediction, and attack libraries take it as it is. At most
    ``chunk`` images pass through F at once: that bounds memory, with gradients too, and never
    changes what is drawn.

    A subclass says how to transform (``_transform``), and what it needs to know about the
    untransformed input (``_look``).
    """

    @timed(Stage.AVERAGING)
    def forward(self, x: Tensor, *, index: Tensor | None = None, stream: str | int = 0) -> Tensor:
        """The log of the averaged prediction, shape (batch, classes)."""
        check_images(x)
        name, index = self.samples_of(x, index, stream)
        return self.average(x, self._look(x), name, index)

    def with_model(self, model: nn.Module) -> Self:
        """The same defence around another copy of the same model, such as a faster one."""
        return self._around(model)

    @abstractmethod
    def _transform(self, x: Tensor, look: Tensor | None, draws: Draws) -> Tensor:
        """The transformed images, shape (samples, draws, C, H, W)."""

    def _look(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """One entry per sample that ``_transform`` needs (mixup inference: the prediction)."""
        return None

    @timed(Stage.AVERAGING)
    def draw(
        self, x: Tensor, draws: int, *, index: Tensor | None = None, stream: str | int = 0
    ) -> Tensor:
        """Log-probabilities draw by draw, shape (batch, draws, classes)."""
        check_images(x)
        check_int(draws, what="draws", least=1)
        name, index = self.samples_of(x, index, stream)
        look = self._look(x)
        with _graph_for(x):
            return within_memory(
                self, x, lambda: torch.cat(list(self._blocks(x, look, name, index, draws)))
            )

    def average(
        self,
        x: Tensor,
        look: Tensor | None,
        stream: Stream,
        index: Tensor,
        draws: int | None = None,
    ) -> Tensor:
        """Log mean softmax over the draws (``self.draws`` by default)."""
        count = self.draws if draws is None else draws

        def compute() -> Tensor:
            blocks = self._blocks(x, look, stream, index, count)
            return torch.cat([mean_prediction(block) for block in blocks])

        with _graph_for(x):
            return within_memory(self, x, compute)

    def _blocks(
        self, x: Tensor, look: Tensor | None, stream: Stream, index: Tensor, draws: int
    ) -> Iterator[Tensor]:
        """Log-probabilities (samples, draws, classes), some samples at a time.

        F sees blocks of samples x draws that fit the chunk.
        """
        key = make_key(self.seed, *stream)
        chunk = self._chunk_size(x)
        samples = max(1, chunk // draws)
        all_k = torch.arange(draws, device=x.device).split(chunk)
        alone = x.shape[0] <= samples and len(all_k) == 1

        def block(x: Tensor, look: Tensor | None, index: Tensor, k: Tensor) -> Tensor:
            with timed(Stage.MIXING):
                images = self._transform(x, look, Draws(key, index, k))
            log_probs: Tensor = self._classify(images.flatten(0, 1))
            return log_probs.view(*images.shape[:2], -1)

        for a in range(0, x.shape[0], samples):
            part = slice(a, a + samples)
            args = x[part], None if look is None else look[part], index[part]
            yield torch.cat([_bounded(block, *args, k, alone=alone) for k in all_k], dim=1)


def mean_prediction(log_probs: Tensor) -> Tensor:
    """The log of the mean over draws of the probabilities, (..., draws, classes) to (..., classes).

    With log-sum-exp, so that gradients survive where probabilities underflow.
    """
    return torch.logsumexp(log_probs, dim=-2) - math.log(log_probs.shape[-2])
