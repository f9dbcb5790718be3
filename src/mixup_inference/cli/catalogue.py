"""The commands `data ...` and `models ...`: what there is, and whether it is intact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from mixup_inference.cli.console import examples, say, say_columns
from mixup_inference.cli.options import DataRoot
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.registry import Registry


def registered_names() -> str:
    """All names that commands and specs take, by kind."""
    from mixup_inference import attacks, datasets, defenses, detection, models  # noqa: PLC0415
    from mixup_inference.training import OBJECTIVES  # noqa: PLC0415

    kinds: dict[str, Registry[Any]] = {
        "Defences": defenses.DEFENSES,
        "Attacks": attacks.ATTACKS,
        "Objectives": OBJECTIVES,
        "Networks": models.NETWORKS,
        "Data sets": datasets.DATASETS,
        "Detection scores": detection.SCORES,
    }
    lines = [f"{kind}: {', '.join(registry)}." for kind, registry in kinds.items()]
    return "\n".join([*lines, "Your own: package.module:attribute; see docs/bring-your-own.md."])


data_app = App(
    name="data",
    help="Data sets: list, download and verify them.",
    help_epilogue=examples("data list", "data get cifar10", "data verify folder:photos"),
)
DataName = Annotated[str, Parameter(help="A name of `data list`, or folder:PATH.")]


@data_app.command(name="list")
def list_datasets(*, data_root: DataRoot = None) -> None:
    """List the data sets, and where each one is."""
    from mixup_inference import datasets  # noqa: PLC0415 (--help must not wait for torch)

    place = datasets.data_root(data_root)
    rows = [(datasets.EMBEDDED, str(datasets.shape_of(datasets.EMBEDDED)), "embedded")]
    for name, source in datasets.SOURCES.items():
        found = source.place(place)
        rows.append((name, str(source.shape), str(found) if found else "not here yet"))
    rows.append((f"{datasets.FOLDER}PATH", "your own images, one folder per class", ""))
    say_columns(rows)
    say(f"\nData root: {place}")


@data_app.command(help_epilogue=examples("data get cifar10", "data get cifar10 --data-root data"))
def get(name: DataName, /, *, data_root: DataRoot = None) -> None:
    """Download a data set, unless it is there already, and verify it."""
    _load(name, data_root, download=True)


@data_app.command(help_epilogue=examples("data verify cifar10", "data verify folder:photos"))
def verify(name: DataName, /, *, data_root: DataRoot = None) -> None:
    """Read a data set and compare it with its published checksums."""
    _load(name, data_root, download=False)


def _load(name: str, root: Path | None, *, download: bool) -> None:
    from mixup_inference import datasets  # noqa: PLC0415
    from mixup_inference.utils.progress import RichProgress  # noqa: PLC0415

    datasets.check_name(name)
    place, source = datasets.data_root(root), datasets.SOURCES.get(name)
    if download and source is not None and source.place(place) is None:
        say(f"Fetching {source.title} into {place}")
    data = datasets.load_dataset(name, root, download=download, progress=RichProgress())
    say(f"{name}: {datasets.Shape.of(data)}")
    if source is not None:
        say(f"in {source.place(place)}; the MD5 of every file is the published one.")


#: What a model's card is called in its folder.
CARD = "README.md"

models_app = App(
    name="models",
    help="Trained models that ship with the package: list them, show a model's card.",
    help_epilogue=examples("models list", "models show cifar10-mixup"),
)


@models_app.command(name="list", help_epilogue=examples("models list"))
def list_models() -> None:
    """List the shipped models, by the names that --weights and from_pretrained accept."""
    from mixup_inference.models import WEIGHTS, read_checkpoint, shipped_models  # noqa: PLC0415

    rows = []
    for name, folder in shipped_models().items():
        _, header = read_checkpoint(folder / WEIGHTS)
        clean = header["clean_accuracy"]
        made = f"{header['architecture']['name']}, {header['objective']} on {header['data']}"
        share = f"{clean['correct'] / clean['total']:.1%} of {clean['total']:,} test images"
        rows.append((name, made, share))
    say_columns(rows)


@models_app.command(help_epilogue=examples("models show cifar10-mixup"))
def show(name: Annotated[str, Parameter(help="Name of a shipped model.")], /) -> None:
    """Show the card of a model: data, recipe, accuracy clean and attacked, settings, limits."""
    from mixup_inference.models import shipped_models  # noqa: PLC0415

    shipped = shipped_models()
    if name not in shipped:
        raise unknown_name("model", name, shipped)
    try:
        say((shipped[name] / CARD).read_text(encoding="utf-8").rstrip())
    except OSError as error:
        raise InputError(f"the card of {name} cannot be read: {error}.") from None
