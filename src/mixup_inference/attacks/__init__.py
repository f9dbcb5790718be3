"""Attacks on a classifier or on a defence, which is a classifier too."""

from mixup_inference.attacks.apgd import apgd_eot as apgd_eot
from mixup_inference.attacks.autoattack import autoattack_rand as autoattack_rand
from mixup_inference.attacks.base import AttackResult as AttackResult
from mixup_inference.attacks.carlini_wagner import carlini_wagner as carlini_wagner
from mixup_inference.attacks.detector_aware import detector_aware as detector_aware
from mixup_inference.attacks.external import check_peer as check_peer
from mixup_inference.attacks.external import is_library as is_library
from mixup_inference.attacks.external import peer_attack as peer_attack
from mixup_inference.attacks.external import peer_names as peer_names
from mixup_inference.attacks.gradient_sign import bim as bim
from mixup_inference.attacks.gradient_sign import fgsm as fgsm
from mixup_inference.attacks.gradient_sign import momentum as momentum
from mixup_inference.attacks.gradient_sign import momentum_transfer as momentum_transfer
from mixup_inference.attacks.losses import LOSSES as LOSSES
from mixup_inference.attacks.options import AttackOptions as AttackOptions
from mixup_inference.attacks.paper import official_adaptive as official_adaptive
from mixup_inference.attacks.paper import paper_adaptive as paper_adaptive
from mixup_inference.attacks.pgd import eot_pgd as eot_pgd
from mixup_inference.attacks.pgd import frozen as frozen
from mixup_inference.attacks.pgd import pgd as pgd
from mixup_inference.attacks.query import Averaged as Averaged
from mixup_inference.attacks.query import Precision as Precision
from mixup_inference.attacks.query import QueryModel as QueryModel
from mixup_inference.attacks.query import base_of as base_of
from mixup_inference.attacks.query import freeze as freeze
from mixup_inference.attacks.registry import ATTACKS as ATTACKS
from mixup_inference.attacks.registry import THREAT_MODELS as THREAT_MODELS
from mixup_inference.attacks.registry import AttackEntry as AttackEntry
from mixup_inference.attacks.registry import attack_title as attack_title
from mixup_inference.attacks.registry import check_settings as check_settings
from mixup_inference.attacks.registry import get_attack as get_attack
from mixup_inference.attacks.registry import library_version as library_version
from mixup_inference.attacks.registry import run_attack as run_attack
from mixup_inference.attacks.registry import suite as suite
from mixup_inference.attacks.square import square_eot as square_eot
from mixup_inference.attacks.success import judge as judge
from mixup_inference.attacks.threat_model import ThreatModel as ThreatModel
from mixup_inference.attacks.threat_model import random_targets as random_targets
from mixup_inference.attacks.transfer import transfer as transfer
from mixup_inference.utils import renaming

__all__ = renaming.public_names(globals())  # noqa: PLE0605
__getattr__ = renaming.renamed(
    __name__,
    {
        "Attacked": "mixup_inference.attacks:AttackResult",
        "Ball": "mixup_inference.attacks:ThreatModel",
        "Common": "mixup_inference.attacks:AttackOptions",
        "Victim": "mixup_inference.attacks:QueryModel",
    },
)
