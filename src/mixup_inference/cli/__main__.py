"""``python -m mixup_inference.cli``."""

from mixup_inference.cli import main

main()
