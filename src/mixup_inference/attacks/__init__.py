"""Attacks on a classifier or on a defence, which is a classifier too."""

from mixup_inference.attacks.pgd import pgd, random_targets

__all__ = ["pgd", "random_targets"]
