"""Detection of adversarial inputs: scores by name, and a detector with a threshold on any."""

from mixup_inference.detection.detector import Detector, MixupDetector
from mixup_inference.detection.scores import SCORES, ScoreEntry

__all__ = ["SCORES", "Detector", "MixupDetector", "ScoreEntry"]
