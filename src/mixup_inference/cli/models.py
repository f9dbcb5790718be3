"""The commands `models list` and `models show`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from mixup_inference.cli.examples import examples
from mixup_inference.cli.lines import say, say_columns
from mixup_inference.errors import InputError, unknown_name

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
