"""PGD against the peers' on the same model and settings; EOT batched against a loop over draws.

And both, and mixup inference, in bfloat16 against float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.inference import data, network
from benchmarks.measure import Job, ratio, take_turns
from mixup_inference import MixupInference, pgd
from mixup_inference.attacks import eot_pgd

EPS, STEP, STEPS = 8 / 255, 2 / 255, 10


def peers(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Job]:
    """PGD of foolbox, torchattacks and ART."""
    import foolbox  # noqa: PLC0415
    import torchattacks  # noqa: PLC0415
    from art.attacks.evasion import ProjectedGradientDescent  # noqa: PLC0415
    from art.estimators.classification import PyTorchClassifier  # noqa: PLC0415

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    one = foolbox.attacks.LinfPGD(steps=STEPS, abs_stepsize=STEP, random_start=False)
    two = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS, random_start=False)
    classifier = PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=10,
        clip_values=(0, 1), device_type="cpu",
    )  # fmt: skip
    three = ProjectedGradientDescent(
        classifier, eps=EPS, eps_step=STEP, max_iter=STEPS, batch_size=len(x), verbose=False
    )
    return {
        "foolbox": lambda: one(wrapped, x, y, epsilons=EPS),
        "torchattacks": lambda: two(x, y),
        "art": lambda: three.generate(x.numpy(), y.numpy()),
    }


def against_peers(rounds: int) -> dict[str, Any]:
    """How many times faster than each peer; the smallest of these is against the fastest one."""
    out = {}
    for name, count in (("small_cnn", 256), ("resnet20", 256), ("fast_resnet", 256)):
        model = network(name)
        x, _ = data(count)
        y = torch.arange(count) % 10
        ours = partial(
            pgd, model, x, y, eps=EPS, step=STEP, steps=STEPS, random_start=False, batch_size=count
        )
        spent = take_turns({"ours": ours, **peers(model, x, y)}, rounds)
        fastest = [min(t) for t in zip(*(spent[p] for p in spent if p != "ours"), strict=True)]
        out[name] = {
            **{peer: ratio(spent[peer], spent["ours"]) for peer in spent if peer != "ours"},
            "fastest": ratio(fastest, spent["ours"]),
        }
    return out


def loop_over_draws(defense: MixupInference, x: Tensor, y: Tensor, draws: int, steps: int) -> None:
    """EOT-PGD with a backward pass for each draw."""
    image = x
    for step in range(steps):
        total = torch.zeros_like(x)
        for draw in range(draws):
            leaf = image.detach().requires_grad_()
            log_p = defense.draw(leaf, 1, index=torch.arange(len(x)), stream=f"{step} {draw}")
            loss = nn.functional.nll_loss(log_p[:, 0], y, reduction="sum")
            total += torch.autograd.grad(loss, leaf)[0]
        image = (image + STEP * total.sign()).clamp(x - EPS, x + EPS).clamp(0, 1)


def eot(rounds: int) -> dict[str, Any]:
    """The loop's time over that of the batched attack."""
    out = {}
    for name, count in (("small_cnn", 8), ("resnet20", 8)):
        x, pool = data(count)
        y = torch.arange(count) % 10
        defense = MixupInference(network(name), pool, draws=30)
        batched = partial(
            eot_pgd, defense, x, y, eps=EPS, step=STEP, steps=10, draws=20, repeats=1,
            loss="mean-ce", random_start=False,
        )  # fmt: skip
        loop = partial(loop_over_draws, defense, x, y, 20, 10)
        spent = take_turns({"batched": batched, "loop": loop}, rounds)
        out[name] = ratio(spent["loop"], spent["batched"])
    return out


def rounding(rounds: int) -> dict[str, Any]:
    """The time in float32 over that in bfloat16: mixup inference, and attacks."""
    out = {}
    for name in ("small_cnn", "resnet20", "fast_resnet"):
        x, pool = data(128)
        y, model = torch.arange(128) % 10, network(name)
        exact, rounded = (
            MixupInference(model, pool, draws=30, engine=engine)
            for engine in ("folded", "bfloat16")
        )
        options: dict[str, Any] = {"eps": EPS, "step": STEP, "steps": STEPS}
        plain = partial(pgd, model, x, y, **options)
        through = partial(eot_pgd, exact, x[:8], y[:8], draws=20, repeats=1, **options)
        jobs: dict[str, tuple[Job, Job]] = {
            "MI-OL": (partial(exact, x[:32]), partial(rounded, x[:32])),
            "PGD": (plain, partial(plain, precision="bf16-mixed")),
            "EOT-PGD": (through, partial(through, precision="bf16-mixed")),
        }
        spent = take_turns(
            {f"{job} {i}": pair[i] for job, pair in jobs.items() for i in (0, 1)}, rounds
        )
        out[name] = {job: ratio(spent[f"{job} 0"], spent[f"{job} 1"]) for job in jobs}
    return out
