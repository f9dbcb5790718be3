"""Inference-time defences: mixup inference and the baselines of Tables 2 and 3."""

from mixup_inference.defenses.base import (
    Options,
    RandomizedInference,
    StochasticModule,
    images_at_once,
    mean_prediction,
    within_memory,
)
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.crop_resize import CropResize
from mixup_inference.defenses.mixup import MixupInference, gap
from mixup_inference.defenses.noise import GaussianNoise
from mixup_inference.defenses.preset_file import read_preset, write_preset
from mixup_inference.defenses.registry import (
    DEFENSES,
    PRESETS,
    Preset,
    get_preset,
    make_defense,
    settings_of,
)
from mixup_inference.defenses.resize_pad import ResizePad
from mixup_inference.defenses.rotation import RandomRotation

__all__ = [
    "DEFENSES",
    "PRESETS",
    "CombinedInference",
    "CropResize",
    "GaussianNoise",
    "MixupInference",
    "Options",
    "Preset",
    "RandomRotation",
    "RandomizedInference",
    "ResizePad",
    "StochasticModule",
    "gap",
    "get_preset",
    "images_at_once",
    "make_defense",
    "mean_prediction",
    "read_preset",
    "settings_of",
    "within_memory",
    "write_preset",
]
