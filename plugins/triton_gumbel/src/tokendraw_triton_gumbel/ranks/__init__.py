"""Sampling from the columns of one rank where several hold the vocabulary."""
