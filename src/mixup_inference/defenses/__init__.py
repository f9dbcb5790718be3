"""Inference-time defences: mixup inference, the baselines of Tables 2 and 3, and others."""

from mixup_inference.defenses.bart import BarrageOfTransforms
from mixup_inference.defenses.base import (
    Defense,
    Options,
    images_at_once,
    mean_prediction,
    within_memory,
)
from mixup_inference.defenses.baselines import CropResize, GaussianNoise, RandomRotation, ResizePad
from mixup_inference.defenses.combined import CombinedInference
from mixup_inference.defenses.dip import DataInterpolatingPrediction
from mixup_inference.defenses.gap import gap
from mixup_inference.defenses.mixup import MixupInference
from mixup_inference.defenses.preprocessing import (
    BitDepthReduction,
    GaussianBlur,
    JpegCompression,
    Preprocessing,
    Resize,
)
from mixup_inference.defenses.presets import PRESETS, Preset, get_preset, read_preset, write_preset
from mixup_inference.defenses.registry import (
    DEFENSES,
    DefenseEntry,
    group_of,
    make_defense,
    settings_of,
)
from mixup_inference.defenses.smoothing import ABSTAIN, Certificate, RandomizedSmoothing
from mixup_inference.defenses.total_variation import TotalVariationMinimization
from mixup_inference.utils.renaming import renamed

__all__ = [
    "ABSTAIN",
    "DEFENSES",
    "PRESETS",
    "BarrageOfTransforms",
    "BitDepthReduction",
    "Certificate",
    "CombinedInference",
    "CropResize",
    "DataInterpolatingPrediction",
    "Defense",
    "DefenseEntry",
    "GaussianBlur",
    "GaussianNoise",
    "JpegCompression",
    "MixupInference",
    "Options",
    "Preprocessing",
    "Preset",
    "RandomRotation",
    "RandomizedSmoothing",
    "Resize",
    "ResizePad",
    "TotalVariationMinimization",
    "gap",
    "get_preset",
    "group_of",
    "images_at_once",
    "make_defense",
    "mean_prediction",
    "read_preset",
    "settings_of",
    "within_memory",
    "write_preset",
]

__getattr__ = renamed(
    __name__,
    {
        "RandomizedInference": "mixup_inference.defenses:Defense",
        "StochasticModule": "mixup_inference.defenses:Defense",
    },
)
