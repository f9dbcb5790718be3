"""Paths that cannot exist are an error for people, whoever is asked for them."""

from __future__ import annotations

import pytest
import torch

from mixup_inference import InputError, from_pretrained, load_weights
from mixup_inference.datasets import load_dataset
from mixup_inference.defenses import get_preset
from mixup_inference.experiments import load_spec


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "a" * 5000, "a\0b"], ids=range(3))
@pytest.mark.parametrize(
    "read",
    [
        from_pretrained,
        lambda path: load_weights(torch.nn.Linear(2, 2), path),
        lambda path: load_dataset(f"folder:{path}"),
        load_spec,
        lambda path: load_spec(f"{path}.toml"),
        lambda path: get_preset(f"{path}.toml"),
    ],
    ids=["pretrained", "weights", "folder", "spec", "spec file", "preset"],
)
def test_paths_that_cannot_exist(path, read):
    with pytest.raises(InputError):
        read(path)
