"""Attacks on a classifier or on a defence, which is a classifier too."""

from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.base import Attacked, Common
from mixup_inference.attacks.detector_aware import detector_aware
from mixup_inference.attacks.eot import eot_pgd, frozen
from mixup_inference.attacks.external import check_peer, library_version, peer_attack, peer_names
from mixup_inference.attacks.losses import LOSSES
from mixup_inference.attacks.paper import official_adaptive, paper_adaptive
from mixup_inference.attacks.pgd import pgd, random_targets
from mixup_inference.attacks.query import Averaged, Precision, Victim, base_of, freeze
from mixup_inference.attacks.registry import (
    ATTACKS,
    attack_title,
    check_settings,
    get_attack,
    run_attack,
)
from mixup_inference.attacks.square import square_eot
from mixup_inference.attacks.success import judge
from mixup_inference.attacks.threat_model import Ball
from mixup_inference.attacks.transfer import transfer

__all__ = [
    "ATTACKS",
    "LOSSES",
    "Attacked",
    "Averaged",
    "Ball",
    "Common",
    "Precision",
    "Victim",
    "apgd_eot",
    "attack_title",
    "base_of",
    "check_peer",
    "check_settings",
    "detector_aware",
    "eot_pgd",
    "freeze",
    "frozen",
    "get_attack",
    "judge",
    "library_version",
    "official_adaptive",
    "paper_adaptive",
    "peer_attack",
    "peer_names",
    "pgd",
    "random_targets",
    "run_attack",
    "square_eot",
    "transfer",
]
