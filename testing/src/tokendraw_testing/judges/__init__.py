"""Judges: each column of an output held against float64."""
