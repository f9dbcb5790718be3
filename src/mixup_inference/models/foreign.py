"""Your own network: built by your own function, with normalisation put in front of it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mixup_inference.classifier import unwrap
from mixup_inference.errors import InputError
from mixup_inference.models.base import ImageClassifier, PerChannel


class Normalized(ImageClassifier):
    """Any classifier of normalised images, made into one of pixels in [0, 1].

    >>> model = Normalized(nn.Flatten(), channels=1, mean=0.5, std=0.5)
    """

    def __init__(
        self, model: nn.Module, *, channels: int = 3, mean: PerChannel, std: PerChannel
    ) -> None:
        super().__init__(channels=channels, mean=mean, std=std)
        self.model = model

    def logits(self, x: Tensor) -> Tensor:
        """Logits from normalised pixels."""
        out: Tensor = unwrap(self.model(x))
        return out


def import_model(name: str, num_classes: int, **settings: Any) -> nn.Module:
    """The network that ``package.module:factory`` names; this runs the user's own code.

    The factory is called with the settings, and with ``num_classes`` if it takes that. A network
    that is already built is taken as it is. Modules are also looked for in the working folder,
    after the installed ones: a folder that came from elsewhere cannot take their place.
    """
    module_name, _, attribute = name.partition(":")
    path_before = sys.path.copy()
    sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        model = found if isinstance(found, nn.Module) else _call(found, num_classes, settings)
    except Exception as error:
        raise InputError(
            f"cannot build the model {name!r}: {type(error).__name__}: {error}. It must be "
            "package.module:factory, a function without required arguments (but num_classes) "
            "that returns an nn.Module."
        ) from error
    finally:
        sys.path[:] = path_before
    if not isinstance(model, nn.Module):
        raise InputError(f"{name} must return an nn.Module; it returned {type(model).__name__}.")
    return model.eval()


def _call(factory: Callable[..., Any], num_classes: int, settings: dict[str, Any]) -> Any:
    parameters = inspect.signature(factory).parameters
    takes_any = inspect.isfunction(factory) and any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )
    if "num_classes" in parameters or takes_any:
        settings = {"num_classes": num_classes, **settings}
    return factory(**settings)
