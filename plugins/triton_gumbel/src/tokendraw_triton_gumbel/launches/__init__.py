"""Launches of the kernels of a room each: constants, scratch and arguments."""
