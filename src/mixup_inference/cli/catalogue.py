"""The commands `data list`, `data get` and `data verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from mixup_inference.cli.console import examples, say, say_columns
from mixup_inference.datasets import (
    EMBEDDED,
    FOLDER,
    SOURCES,
    Shape,
    check_name,
    data_root,
    load_dataset,
    shape_of,
)
from mixup_inference.errors import InputError, unknown_name
from mixup_inference.utils.progress import RichProgress


def print_list(root: Path | None) -> None:
    """All data sets by name, what is in them, and where they are."""
    place = data_root(root)
    rows = [(EMBEDDED, str(shape_of(EMBEDDED)), "embedded")]
    for name, source in SOURCES.items():
        found = source.place(place)
        rows.append((name, str(source.shape), str(found) if found else "not here yet"))
    rows.append((f"{FOLDER}PATH", "your own images, a folder a class", ""))
    say_columns(rows)
    say(f"\nData root: {place}")


def get_one(name: str, root: Path | None) -> None:
    """Fetch a data set unless it is there, and verify it."""
    _load(name, root, download=True)


def verify_one(name: str, root: Path | None) -> None:
    """Read a data set and check it."""
    _load(name, root, download=False)


def _load(name: str, root: Path | None, *, download: bool) -> None:
    check_name(name)
    place = data_root(root)
    if download and name in SOURCES and SOURCES[name].place(place) is None:
        say(f"Fetching {SOURCES[name].title} into {place}")
    data = load_dataset(name, root, download=download, progress=RichProgress())
    say(f"{name}: {Shape.of(data)}")
    if name in SOURCES:
        say(f"in {SOURCES[name].place(place)}; every file has its published MD5.")


#: What a model's card is called in its folder.
CARD = "README.md"

models_app = App(
    name="models",
    help="Trained models that ship: what there is, and what each can do and must not be used for.",
    help_epilogue=examples("models list", "models show cifar10-mixup"),
)


@models_app.command(name="list", help_epilogue=examples("models list"))
def list_() -> None:
    """All models that ship, by the names that `--weights` and from_pretrained take."""
    from mixup_inference.models import WEIGHTS, read_checkpoint, shipped_models  # noqa: PLC0415

    rows = []
    for name, folder in shipped_models().items():
        _, header = read_checkpoint(folder / WEIGHTS)
        clean = header["clean_accuracy"]
        rows.append(
            (
                name,
                f"{header['architecture']['name']}, {header['objective']} on {header['data']}",
                f"{clean['correct'] / clean['total']:.1%} of {clean['total']:,} test images",
            )
        )
    say_columns(rows)


@models_app.command(help_epilogue=examples("models show cifar10-mixup"))
def show(name: Annotated[str, Parameter(help="Name of a model that ships.")], /) -> None:
    """The card of one model: data, recipe, accuracy clean and attacked, settings, limits."""
    from mixup_inference.models import shipped_models  # noqa: PLC0415

    shipped = shipped_models()
    if name not in shipped:
        raise unknown_name("model", name, shipped)
    try:
        say((shipped[name] / CARD).read_text(encoding="utf-8").rstrip())
    except OSError as error:
        raise InputError(f"the card of {name} cannot be read: {error}.") from None
