"""Inference-time defences: mixup inference and the baselines of Tables 2 and 3."""

from mixup_inference.defenses.base import (
    Options,
    RandomizedInference,
    StochasticModule,
    images_at_once,
    mean_prediction,
    within_memory,
)
from mixup_inference.defenses.baselines import CropResize, GaussianNoise, RandomRotation, ResizePad
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.mixup import MixupInference, gap
from mixup_inference.defenses.presets import PRESETS, Preset, get_preset, read_preset, write_preset
from mixup_inference.defenses.registry import DEFENSES, make_defense, settings_of

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
