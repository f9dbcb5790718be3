"""Options that several commands take; importing them must not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

DataRoot = Annotated[
    Path | None,
    Parameter(
        help="Folder of the data sets; else $MIXUP_INFERENCE_DATA, or the user's cache folder."
    ),
]

Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class Part:
    """How much of an experiment is run."""

    points: int | None = None
    "Use only the first POINTS test images. This is a separate run; it trains its own models."

    dry_run: Annotated[Flag, Parameter(name=["--dry-run", "-n"])] = False
    "Only print what would be computed, and how long it would take on this machine."

    smoke: Flag = False
    "Try everything, on 32 images, with one step of training and of each attack."


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options that every stage takes."""

    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs")
    "Results go to OUTPUT/NAME, where NAME is that of the experiment."

    device: str = "cpu"
    "cpu, cuda, mps, or auto for the fastest one available."

    data_root: DataRoot = None

    engine: str | None = None
    "Engine that runs the network in defences, instead of the spec's: eager, folded, ..., auto."

    attack_precision: Literal["32-true", "bf16-mixed"] | None = None
    "Precision of the attacks' gradients, instead of the spec's; success is measured with --engine."

    reuse_models: Flag = False
    "Accept models that older code trained by the same recipe; the report says so."

    quiet: Annotated[Flag, Parameter(name=["--quiet", "-q"])] = False
    "Print nothing but errors."

    allow_code: Flag = False
    "Let a spec run the Python code that it names as package.module:factory."


@Parameter(name="*")
@dataclass(frozen=True)
class Processes:
    """How the work is divided between processes."""

    devices: int | None = None
    "Number of processes on each machine that share the work; leave it out under torchrun."

    nodes: int | None = None
    "Number of machines that share the work."

    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None
    "Precision of training, instead of the spec's."

    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = "auto"
    "How Lightning Fabric synchronises several processes."


#: Test points, if the user does not say.
POINTS = 1000


@Parameter(name="*")
@dataclass(frozen=True)
class OneModel:
    """Options that describe one model, its data, a defence and an attack."""

    data: str | None = None
    "Data set: a name of `data list`, or folder:PATH."

    model: str | None = None
    "Network: a name below (resnet20, ...), or package.module:factory for your own."

    weights: str | None = None
    "Its weights: a file, a saved model's folder, or a name of `models list` (no --model needed)."

    mean: str | None = None
    "Mean that the model subtracts from pixels in [0, 1]: one number, or 0.485,0.456,0.406."

    std: str | None = None
    "Standard deviation that it divides them by, likewise."

    size: int | None = None
    "Resize the images to this side, in pixels."

    channels: Literal[1, 3] | None = None
    "Make the images grey (1) or colour (3)."

    classes: int | None = None
    "Number of classes of the model, if it differs from that of the data."

    defense: str = "mi-ol"
    "Name of a defence (below), or package.module:factory for your own."

    lam: float | None = None
    "Share of the input in the mixtures of mi-ol, mi-pl and dip."

    setting: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "Another setting of the defence, as name=value; may be repeated."

    preset: str | None = None
    "Defence and settings by name (cifar10/mixup+mi-ol), or a file that `tune` wrote."

    draws: int = 30
    "Draws of the defence for each image."

    attack: Annotated[tuple[str, ...], Parameter(negative="")] = ("pgd",)
    "pgd (ignores the defence), none, adaptive (the standard suite), or a name below; may repeat."

    attack_setting: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "A setting of the adaptive attacks, as name=value (draws=20); may be repeated."

    surrogate: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    "Weights of another model, to craft transfer attacks on; may be repeated."

    norm: Literal["linf", "l2"] = "linf"
    "Norm that bounds the attack."

    eps: str = "8/255"
    "The largest perturbation in this norm, for pixels in [0, 1]."

    step: str | None = None
    "Step size of attacks that take steps: by default eps / 4; for momentum attacks, eps / steps."

    steps: int | None = None
    "Number of steps of attacks that take steps: by default 10 for pgd, else the attack's own."

    checks: int | None = None
    "Test images on which it is checked that adaptive attacks work: by default 50; 0 for none."

    points: int | None = None
    "Test images: by default 1000, of which adaptive attacks use 200."

    batch_size: int = 250
    "Images that are processed at a time."

    seed: int = 0
    "Seed of the choice of test images, of attacks and of draws."
