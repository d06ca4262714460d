"""Sampling from the columns of a rank where several ranks hold the vocabulary."""
