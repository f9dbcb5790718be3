"""The guard as one graph of tensors, without checks and early stopping: what is exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from mixup_inference.defenses import CombinedInference, MixupInference
from mixup_inference.defenses.base import images_at_once
from mixup_inference.defenses.gap import gap
from mixup_inference.draws import Draws
from mixup_inference.guard.guard import STREAM
from mixup_inference.guard.narrow import NarrowDraws
from mixup_inference.models.call import unwrap
from mixup_inference.models.folding import bare
from mixup_inference.pool import mix

#: As many mixtures of each image pass through F at once as fit the memory for such a batch.
BATCH = 4


class GuardGraph(nn.Module):
    """What ``Guard.predict`` computes with all draws, from images and seeds alone.

    The mixtures pass through F in blocks, in a loop of the graph, so the memory depends on the
    batch and not on the number of draws. MI-OL is computed if an image of the batch is flagged, and
    then for all of them.

    An engine that computes int64 in 32 bits would draw something else. There every score is NaN and
    every image flagged, unless the draws are ``narrow``.

    Args:
        inference: MI-Combined, as the guard has it.
        block: how many mixtures of each image pass through F at once; it divides the draws.
        images: two of the pool.
        narrow: draw in integers below 2^31, see ``guard.narrow``; for independent draws only.
    """

    def __init__(
        self, inference: CombinedInference, block: int, images: Tensor, *, narrow: bool = False
    ) -> None:
        super().__init__()
        self.inference = inference.with_model(traced(inference.model, images))
        self.block = block
        self.narrow = narrow

    def forward(self, images: Tensor, seed: Tensor) -> dict[str, Tensor]:
        """The fields of ``Answer``; images NCHW in [0, 1], an int64 seed for each."""
        mi = self.inference
        detect, defend = mi.part_numbers(images, seed, STREAM)
        before = self._log_probs(images)
        y_hat = before.argmax(1)
        always = torch.ones((), dtype=torch.bool)
        after = self._average(mi.detector, images, y_hat, detect, always)
        score = gap(before, after, mi.convention)
        flagged = score > mi.threshold
        if not self.narrow:
            wide = is_wide(seed)
            score, flagged = torch.where(wide, score, torch.nan), flagged | ~wide
        defended = self._average(mi.defender, images, y_hat, defend, flagged.any())
        answer = torch.where(flagged[:, None], defended, before)
        return {
            "label": answer.argmax(1),
            "probabilities": answer.exp(),
            "undefended_label": y_hat,
            "score": score,
            "is_adversarial": flagged,
            "draws": mi.draws * (1 + flagged.long()),
        }

    def _average(
        self, mi: MixupInference, x: Tensor, y_hat: Tensor, numbers: Draws, wanted: Tensor
    ) -> Tensor:
        """Log F_MI, if it is wanted."""
        if self.narrow:
            numbers = NarrowDraws.of(numbers, mi.p_s.round)
        lam, chosen = mi.partners(y_hat, numbers)

        def unfinished(first: Tensor, total: Tensor) -> Tensor:  # noqa: ARG001
            return (first < mi.draws) & wanted

        def add_block(first: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            k = first + torch.arange(self.block)
            x_s = mi.pool.pixels(chosen[:, k], x.dtype)
            images = mix(x[:, None], x_s, lam[:, k, None, None, None].to(x.dtype))
            p = self._log_probs(images.flatten(0, 1)).exp()
            return first + self.block, total + p.view(x.shape[0], self.block, -1).sum(1)

        start = torch.zeros((), dtype=torch.int64), x.new_zeros(x.shape[0], mi.pool.classes)
        _, total = while_loop(unfinished, add_block, start)
        return mi.correct((total / mi.draws).log(), y_hat, numbers)

    def _log_probs(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.inference.model(x), dim=1)


class Logits(nn.Module):
    """A classifier whose output is a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = bare(model)

    def forward(self, x: Tensor) -> Tensor:
        """The model's logits."""
        out: Tensor = unwrap(self.model(x))
        return out


def traced(model: nn.Module, images: Tensor) -> nn.Module:
    """A classifier as a graph for any number of images; a loop takes no other Python code."""
    program = torch.export.export(
        Logits(model), (images,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    return program.module(check_guards=False)


def is_wide(seed: Tensor) -> Tensor:
    """Whether int64 has 64 bits; it depends on the seed, so that no engine folds it away."""
    return ((seed & 1) + (1 << 40) >> 20 >> 20) == 1


def block_size(draws: int, images: Tensor) -> int:
    """The largest divisor of the draws with which a batch of four images fits the memory."""
    most = max(1, images_at_once(images) // BATCH)
    return max(size for size in range(1, draws + 1) if draws % size == 0 and size <= most)
