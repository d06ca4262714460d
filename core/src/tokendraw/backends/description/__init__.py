"""Frozen records of what plugins offer, what callers need, and what a machine is."""
