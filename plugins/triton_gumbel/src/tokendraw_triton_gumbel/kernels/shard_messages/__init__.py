"""Merges the messages of the ranks of a split vocabulary into thresholds and tokens, equal on every rank."""
