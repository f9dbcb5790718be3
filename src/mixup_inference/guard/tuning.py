"""Settings of a guard that suit a model, chosen on clean images and on PGD's examples of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mixup_inference.attacks import pgd
from mixup_inference.detection import MixupDetector
from mixup_inference.evaluation.grid_search import try_settings
from mixup_inference.guard.settings import Settings
from mixup_inference.metrics.roc import auc
from mixup_inference.models.call import dtype_of
from mixup_inference.pool import Pool
from mixup_inference.utils.progress import SILENT, Progress
from mixup_inference.validation import as_pixels

#: The ratios that are tried for MI-PL and for MI-OL.
LAMS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def tuned(
    model: nn.Module,
    pool: Pool,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = 8 / 255,
    settings: Settings | None = None,
    progress: Progress = SILENT,
) -> Settings:
    """The ratio of MI-PL with the highest AUC, and that of MI-OL with the highest accuracy.

    Both are means over untargeted and targeted PGD-10 on the model alone; MI-OL only answers for
    inputs that are suspicious, so its clean accuracy does not count.

    Args:
        model: any classifier from NCHW images in [0, 1] to logits.
        pool: the clean images to mix with.
        x: clean images that are neither in the pool nor used to calibrate or test.
        y: their labels.
        eps: the largest change of a pixel; steps are a quarter of it.
        settings: the other settings of the guard.
        progress: where to report.
    """
    settings = settings or Settings()
    x = as_pixels(x, dtype_of(model))
    attacked = {
        mode: pgd(model, x, y, eps=eps, step=eps / 4, steps=10, targeted=mode == "targeted")
        for mode in ("untargeted", "targeted")
    }
    index = torch.arange(len(x))
    options: dict[str, Any] = settings.model_dump(include={"draws", "engine", "seed"})

    def area(lam: float) -> float:
        detector = MixupDetector(model, pool, lam=lam, **options)
        with torch.no_grad():
            clean = detector.score(x, index=index)
            areas = [auc(clean, detector.score(some, index=index)) for some in attacked.values()]
        return sum(areas)

    with progress.task("tune MI-PL", len(LAMS)) as task:
        areas = {}
        for lam in LAMS:
            areas[lam] = area(lam)
            task.advance()
    grid = [{"lam": lam} for lam in LAMS]
    trials = try_settings(
        model, pool, "mi-ol", x, attacked, y, grid=grid, index=index, progress=progress, **options
    )
    chosen = max(trials, key=lambda trial: trial.robust)
    return settings.model_copy(
        update={
            "lam_detect": max(areas, key=areas.__getitem__),
            "lam_defend": chosen.settings["lam"],
        }
    )
