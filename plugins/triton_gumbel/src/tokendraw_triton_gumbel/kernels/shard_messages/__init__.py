"""Merges what the ranks of a split vocabulary told each other: thresholds and tokens, the same on every rank."""
