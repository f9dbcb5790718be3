from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mixup_inference

NAMES = [
    *("Pool", "MixupInference", "CombinedInference", "MixupDetector", "GaussianNoise"),
    *("RandomRotation", "ResizePad", "CropResize", "pgd", "train", "evaluate", "Uniform", "Beta"),
]


def test_promised_names_are_there_and_listed():
    for name in NAMES:
        assert callable(getattr(mixup_inference, name))
        assert name in dir(mixup_inference)
    assert set(NAMES) <= set(mixup_inference.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Poool'"):
        mixup_inference.Poool  # noqa: B018


def test_type_checkers_see_what_the_table_has():
    source = ast.parse(Path(mixup_inference.__file__).read_text(encoding="utf-8"))
    block = next(node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.asname: statement.module.removeprefix("mixup_inference.")
        for statement in block.body
        for alias in statement.names
    }
    assert seen == mixup_inference._HOME_OF
    assert {getattr(mixup_inference, name).__name__ for name in seen} == set(seen)


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import mixup_inference", ["torch", "sklearn", "matplotlib", "lightning_fabric"]),
        ("import mixup_inference.cli", ["torch", "sklearn", "matplotlib", "lightning_fabric"]),
        ("import mixup_inference.cli.guard_serve", ["torch", "kserve", "fastapi", "uvicorn"]),
        ("from mixup_inference import *", ["sklearn", "matplotlib", "lightning_fabric"]),
    ],
)
def test_imports_stay_light(code, heavy):
    check = f"{code}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
