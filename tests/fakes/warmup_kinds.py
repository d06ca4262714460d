"""The kinds of batches that a warmup draws."""

SEEDS = [(False, False, False), (False, False, True), (True, False, True), (True, True, True)]
"""Any, all, positions."""
FILTERS = [(False, False, False), (True, False, False), (True, True, False), (False, False, True)]
"""Any, joint, all greedy."""
