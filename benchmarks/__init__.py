"""Ratios against the limit, against the double loop and against peers, measured side by side."""
