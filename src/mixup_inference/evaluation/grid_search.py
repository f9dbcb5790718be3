"""Grid search for the settings of a defence: trials, Pareto front (Figure 3b), choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.defenses import DEFENSES, make_defense
from mixup_inference.errors import InputError
from mixup_inference.evaluation.evaluate import evaluate
from mixup_inference.metrics.accuracy import Accuracy
from mixup_inference.pool import Pool
from mixup_inference.utils.progress import SILENT, Progress


def grid_of(defense: str) -> list[dict[str, Any]]:
    """The settings that are tried for a defence."""
    grid = DEFENSES[defense].grid
    if not grid:
        raise InputError(
            f"the defence {defense!r} has no settings to tune; give its factory an attribute "
            "'grid', a list of settings."
        )
    return [dict(settings) for settings in grid]


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as people read them.

    >>> in_words({"lam": 0.5, "draws": 3})
    'lam 0.5, draws 3'
    """
    return ", ".join(f"{name} {value}" for name, value in settings.items())


@dataclass(frozen=True)
class Trial:
    """One setting of a defence, and its accuracies."""

    settings: dict[str, Any]
    clean: Accuracy
    attacked: dict[str, Accuracy]

    @property
    def robust(self) -> float:
        """The mean accuracy over the attacks."""
        return sum(a.value for a in self.attacked.values()) / len(self.attacked)


def try_settings(
    model: nn.Module,
    pool: Pool,
    defense: str,
    clean: Tensor,
    attacked: Mapping[str, Tensor],
    labels: Tensor,
    *,
    grid: Sequence[dict[str, Any]] | None = None,
    index: Tensor | None = None,
    batch_size: int = 250,
    progress: Progress = SILENT,
    **options: Any,
) -> list[Trial]:
    """Clean and attacked accuracy of a defence for every setting of its grid.

    ``options`` are common to all settings: ``draws``, ``seed``, ``engine``.
    """
    grid = grid_of(defense) if grid is None else grid
    trials = []
    with progress.task(f"tune {defense}", len(grid) * (1 + len(attacked))) as task:
        for settings in grid:
            defended = make_defense(defense, model, pool, **settings, **options)
            measured = {}
            for name, x in {"clean": clean, **attacked}.items():
                measured[name] = evaluate(
                    defended, x, labels, index=index, stream="tuning", batch_size=batch_size
                )
                task.advance()
            trials.append(Trial(dict(settings), measured.pop("clean"), measured))
    return trials


def choose(trials: Sequence[Trial], base: Accuracy, *, loss: float = 0.02) -> Trial:
    """The trial with the highest mean attacked accuracy that loses at most ``loss`` clean.

    The loss is measured against the undefended model on the same points; of equals the one with
    the higher clean accuracy is taken.
    """
    allowed = [t for t in trials if t.clean.value >= base.value - loss - 1e-9]
    if not allowed:
        least = max(trials, key=lambda t: t.clean.value)
        raise InputError(
            f"every setting loses more than {100 * loss:g} points of clean accuracy (the gentlest, "
            f"{least.settings}, loses {100 * (base.value - least.clean.value):.1f}). Allow more."
        )
    return max(allowed, key=lambda t: (t.robust, t.clean.value))


def pareto(trials: Sequence[Trial]) -> list[bool]:
    """Whether each trial is on the front: no other is better in one accuracy and as good in both.

    >>> def trial(clean, robust):
    ...     return Trial({}, Accuracy(clean, 10), {"a": Accuracy(robust, 10)})
    >>> pareto([trial(9, 1), trial(8, 5), trial(7, 4), trial(9, 1)])
    [True, True, False, True]
    """
    clean = torch.tensor([t.clean.value for t in trials], dtype=torch.float64)
    robust = torch.tensor([t.robust for t in trials], dtype=torch.float64)
    at_least = (clean[:, None] >= clean) & (robust[:, None] >= robust)
    better = (clean[:, None] > clean) | (robust[:, None] > robust)
    return [not bool(beaten) for beaten in (at_least & better).any(0)]
