"""Options that several commands take; importing them must not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

DataRoot = Annotated[
    Path | None,
    Parameter(
        help="Where data sets are kept; else $MIXUP_INFERENCE_DATA or the user's cache folder."
    ),
]

Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class Part:
    """How much of an experiment is run."""

    points: int | None = None
    "Only the first so many test points. A run of its own: models are trained anew."

    dry_run: Annotated[Flag, Parameter(name=["--dry-run", "-n"])] = False
    "Only print what would be computed, and how long that would take on this machine."

    smoke: Flag = False
    "End to end on 32 images, one step of training and attack."


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options that every stage takes."""

    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs")
    "Results go to OUTPUT/NAME of the experiment."

    device: str = "cpu"
    "cpu, cuda, mps, or auto for the fastest there is."

    data_root: DataRoot = None

    engine: str | None = None
    "Computes defended networks, instead of the spec's engine: eager, folded, bfloat16, ..., auto."

    attack_precision: Literal["32-true", "bf16-mixed"] | None = None
    "Precision of the attacks' gradients, instead of the spec's; success is judged by the engine."

    reuse_models: Flag = False
    "Use models that an older version of the code trained by the same recipe; the report says so."

    quiet: Annotated[Flag, Parameter(name=["--quiet", "-q"])] = False
    "Print nothing but errors."

    allow_code: Flag = False
    "Let a spec run the Python code that it names as package.module:factory."


@Parameter(name="*")
@dataclass(frozen=True)
class Processes:
    """How the work is spread."""

    devices: int | None = None
    "Processes on each machine that share the work; under torchrun, those that it started."

    nodes: int | None = None
    "Machines that share the work."

    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None
    "Precision of training, instead of the spec's."

    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = "auto"
    "Strategy of Lightning Fabric for several processes."


#: Test points, if the user does not say.
POINTS = 1000


@Parameter(name="*")
@dataclass(frozen=True)
class OneModel:
    """Options that describe one model, its data, a defence and an attack."""

    data: str | None = None
    "Data set: a name of `data list`, or folder:PATH."

    model: str | None = None
    "A network of ours (resnet20, ...), or package.module:factory for your own."

    weights: str | None = None
    "Its weights: a file, safetensors or torch's, or a name of `models list`. Ours say the network."

    mean: str | None = None
    "Mean of the pixels that the model normalises by: one number, or 0.485,0.456,0.406."

    std: str | None = None
    "Their standard deviation, likewise."

    size: int | None = None
    "Side that the images are resized to."

    channels: Literal[1, 3] | None = None
    "Make the images grey (1) or colour (3)."

    classes: int | None = None
    "Number of classes of the model, if it is not that of the data."

    defense: str = "mi-ol"
    "Name of a defence (below), or package.module:factory for your own."

    lam: float | None = None
    "Mixing ratio of mi-ol, mi-pl and dip."

    setting: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "Another setting of the defence, as name=value; repeatable."

    preset: str | None = None
    "Defence and settings by name (cifar10/mixup+mi-ol), or a file that `tune` wrote."

    draws: int = 30
    "Draws of the defence for each image."

    attack: Annotated[tuple[str, ...], Parameter(negative="")] = ("pgd",)
    "pgd (ignores the defence), none, adaptive (the standard suite), or a name below; repeatable."

    attack_setting: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "A setting of the adaptive attacks, as name=value (draws=20); repeatable."

    surrogate: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "Weights of another model, to craft transfer attacks on; repeatable."

    norm: Literal["linf", "l2"] = "linf"
    "Norm of the attack."

    eps: str = "8/255"
    "Its bound."

    step: str | None = None
    "Step size of the attacks that take steps: a quarter of eps; of momentum ones, eps / steps."

    steps: int | None = None
    "Number of steps of the attacks that take steps: 10 for pgd, else their own."

    checks: int | None = None
    "Points on which adaptive attacks are checked to work: 50; 0 for none."

    points: int | None = None
    "Test points: 1000, of which adaptive attacks take 200."

    batch_size: int = 250
    "Images at a time."

    seed: int = 0
    "Seed of points, attack and draws."
