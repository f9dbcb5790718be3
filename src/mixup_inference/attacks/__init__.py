"""Attacks on a classifier or on a defence, which is a classifier too."""

from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.autoattack import autoattack_rand
from mixup_inference.attacks.base import AttackResult
from mixup_inference.attacks.carlini_wagner import carlini_wagner
from mixup_inference.attacks.detector_aware import detector_aware
from mixup_inference.attacks.external import check_peer, peer_attack, peer_names
from mixup_inference.attacks.gradient_sign import bim, fgsm, momentum, momentum_transfer
from mixup_inference.attacks.losses import LOSSES
from mixup_inference.attacks.options import AttackOptions
from mixup_inference.attacks.paper import official_adaptive, paper_adaptive
from mixup_inference.attacks.pgd import eot_pgd, frozen, pgd
from mixup_inference.attacks.query import Averaged, Precision, QueryModel, base_of, freeze
from mixup_inference.attacks.registry import (
    ATTACKS,
    THREAT_MODELS,
    AttackEntry,
    attack_title,
    check_settings,
    get_attack,
    is_library,
    library_version,
    run_attack,
    suite,
)
from mixup_inference.attacks.square import square_eot
from mixup_inference.attacks.success import judge
from mixup_inference.attacks.threat_model import ThreatModel, random_targets
from mixup_inference.attacks.transfer import transfer
from mixup_inference.utils.renaming import renamed

__all__ = [
    "ATTACKS",
    "LOSSES",
    "THREAT_MODELS",
    "AttackEntry",
    "AttackOptions",
    "AttackResult",
    "Averaged",
    "Precision",
    "QueryModel",
    "ThreatModel",
    "apgd_eot",
    "attack_title",
    "autoattack_rand",
    "base_of",
    "bim",
    "carlini_wagner",
    "check_peer",
    "check_settings",
    "detector_aware",
    "eot_pgd",
    "fgsm",
    "freeze",
    "frozen",
    "get_attack",
    "is_library",
    "judge",
    "library_version",
    "momentum",
    "momentum_transfer",
    "official_adaptive",
    "paper_adaptive",
    "peer_attack",
    "peer_names",
    "pgd",
    "random_targets",
    "run_attack",
    "square_eot",
    "suite",
    "transfer",
]

__getattr__ = renamed(
    __name__,
    {
        "Attacked": "mixup_inference.attacks:AttackResult",
        "Ball": "mixup_inference.attacks:ThreatModel",
        "Common": "mixup_inference.attacks:AttackOptions",
        "Victim": "mixup_inference.attacks:QueryModel",
    },
)
