"""Launches of the kernels of one room each: their constants, scratch and arguments."""
