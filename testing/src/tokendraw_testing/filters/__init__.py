"""Checks of a filter from moments: the floor by itself, and rows drawn by samplers."""
